// What the f32 row of verify keeps of the nodes of one head.
#pragma once

namespace linestate {

struct KdaVerifyScratch {
  float* dt_bias;  // [K]
  float* alpha;    // [nodes, K]
  float* k;        // [nodes, K] k^
  float* q;        // [nodes, K] scale * q^
  float* v;        // [nodes, V]
  float* beta;     // [nodes]
  float* s;        // [1 + nodes, K] one row of the state: committed, then behind every node
};

}  // namespace linestate
