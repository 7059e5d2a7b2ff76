// Speculation without a draft model: which drafts a step proposes and how many of them are right
// is a function of (seed, request, position) alone.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cli/replay/scheduler.h"
#include "cli/replay/trace.h"
#include "linestate/status.h"

namespace linestate::cli {

enum class Speculation : uint8_t { kOff, kChain, kTree };

/// off, chain or tree. Errors: kInvalidArgument naming the option and the choices.
Result<Speculation> parse_speculation(std::string_view name);

struct SpeculationOptions {
  Speculation kind = Speculation::kOff;
  int64_t draft_length = 4;  // tokens of a verify row, the sure one included
  double acceptance = 0.7;   // chance that a draft behind a right token is right
  uint64_t seed = 0;
  // Of eight tokens, how many on average are decoded without drafts, as when the draft model has
  // nothing to offer.
  int64_t plain_in_eight = 0;
};

/// A draft of `valid` >= 1 nodes for the token at `position`. One in eight nodes of a tree behind
/// its second is inert: a place of a fixed-size tree that the draft model left empty.
Draft make_draft(const SpeculationOptions& options, int64_t valid, int64_t request,
                 int64_t position);

/// Turns decode rows into verify rows. A row never drafts past its request's end, and one tree in
/// eight is smaller than it might be: even steps then keep the full width with placeholders, odd
/// steps have fewer nodes. A request's last token is decoded.
void plan_drafts(const SpeculationOptions& options, std::span<const TraceRequest> trace,
                 int64_t step, StepPlan& plan);

/// Token of `node`: the request's own when the node is accepted, otherwise some other.
uint64_t draft_token_id(const Draft& draft, int64_t node, const TraceRequest& request,
                        int64_t index, int64_t position);

}  // namespace linestate::cli
