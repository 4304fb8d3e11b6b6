//! From older layouts to this one. Each step gives what this program would have written.
use super::committee::elect;
use crate::state::{
    run_state, CoordinatorAccount, Dispute, DEFAULT_MAX_WITNESS_CONTRADICTIONS, MAX_DISPUTES, VERSION,
};

/// Version 1 had no limit of contradictions, stored a position with each witness, and drew the witnesses anew
/// for each of them; it knew no disputes. What it paid out it did not keep here: nobody had deployed a treasurer by then.
pub fn migrate_from_1(c: &mut CoordinatorAccount) {
    c.version = VERSION;
    let config = &mut c.config;
    config.max_witness_contradictions = DEFAULT_MAX_WITNESS_CONTRADICTIONS;
    // whatever an owner had put into bytes that meant nothing
    (config.verified_tiles, config.num_tie_breakers, config.max_refusals, config.pad0) = (0, 0, 0, 0);
    (config.min_alignment, config.max_residual, config.max_violation, config.min_jaccard) = (0, 0, 0, 0);
    config.required_bond = 0;
    c.disputes = [Dispute::FREE; MAX_DISPUTES];
    for witness in c.epoch_state.rounds.iter_mut().flat_map(|round| round.witnesses.iter_mut()) {
        witness.pad0 = 0;
    }
    if matches!(c.run_state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        let elected = elect(c.config.witness_nodes, c.epoch_state.current());
        c.epoch_state.current_mut().elected = elected;
    }
}
