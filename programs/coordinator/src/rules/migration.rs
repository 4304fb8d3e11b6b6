//! From older layouts to this one. Each step gives what this program would have written.
use super::committee::elect;
use crate::state::{run_state, CoordinatorAccount, DEFAULT_MAX_WITNESS_CONTRADICTIONS, VERSION};

/// Version 1 had no limit of contradictions, stored a position with each witness, and drew the witnesses anew
/// for each of them. What it paid out it did not keep here: nobody had deployed a treasurer by then.
pub fn migrate_from_1(c: &mut CoordinatorAccount) {
    c.version = VERSION;
    c.config.max_witness_contradictions = DEFAULT_MAX_WITNESS_CONTRADICTIONS;
    for witness in c.epoch_state.rounds.iter_mut().flat_map(|round| round.witnesses.iter_mut()) {
        witness.pad0 = 0;
    }
    if matches!(c.run_state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        let elected = elect(c.config.witness_nodes, c.epoch_state.current());
        c.epoch_state.current_mut().elected = elected;
    }
}
