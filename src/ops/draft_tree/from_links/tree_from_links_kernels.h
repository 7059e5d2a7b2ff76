// Every kernel of tree_from_links, in the order `auto` tries them.
#pragma once

#include "dispatch/kernel_table.h"
#include "linestate/ops/draft_tree.h"

namespace linestate {

Status tree_from_links_cuda(const TreeFromLinksParams& params, const ExecContext& context);
Status tree_from_links_cpu(const TreeFromLinksParams& params, const ExecContext& context);
Status tree_from_links_ref(const TreeFromLinksParams& params, const ExecContext& context);

inline constexpr KernelRow<TreeFromLinksParams> kTreeFromLinksRows[] = {
    {"cuda", DeviceType::kCuda, "a thread a tree, portable from sm_80", nullptr, nullptr,
     LINESTATE_CUDA_RUN(tree_from_links_cuda)},
    {"cpu", DeviceType::kCpu, "one pass a tree, each node hands on to the nodes it names", nullptr,
     nullptr, tree_from_links_cpu},
    {"ref", DeviceType::kCpu, "for each node, looks for the one that names it", nullptr, nullptr,
     tree_from_links_ref},
};

const OpTable<TreeFromLinksParams>& tree_from_links_table();

}  // namespace linestate
