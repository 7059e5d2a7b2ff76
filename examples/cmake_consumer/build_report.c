/* Which library this program runs with. */
#include <stdio.h>

#include "linestate/c_api.h"

int main(void) {
  printf("linestate %s, %s, C interface %u\n", ls_version(), ls_build_description(),
         (unsigned)ls_abi_version());
  return ls_abi_version() == LS_ABI_VERSION ? 0 : 1;
}
