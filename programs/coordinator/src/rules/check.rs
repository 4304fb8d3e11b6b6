//! What a configuration must obey (Psyche's `check_error` and model check).
use super::transition::NUM_APPLY_ROUNDS;
use crate::error::Error;
use crate::state::{
    checkpoint, CoordinatorConfig, CoordinatorProgress, Model, DATA_LOCATION_DUMMY, MAX_ARCHITECTURE,
    MAX_CLIENTS, MAX_DATA_LOCATION, MAX_DATA_TYPE, MAX_LR_SCHEDULE, MAX_TIE_BREAKERS,
    MAX_VERIFICATION_PERCENT, MAX_VERIFIED_TILES, MAX_WITNESSES, OPTIMIZER_DISTRO,
};
use psyche_common::Res;

pub fn check_config(c: &CoordinatorConfig) -> Res {
    let holds = c.epoch_time != 0
        && c.warmup_time < c.epoch_time
        && c.max_round_train_time != 0
        && c.max_round_train_time < c.epoch_time
        && c.round_witness_time != 0
        && c.min_clients != 0
        && c.init_min_clients >= c.min_clients
        && c.init_min_clients as usize <= MAX_CLIENTS
        && c.global_batch_size_start != 0
        && c.global_batch_size_end >= c.global_batch_size_start
        && c.total_steps > NUM_APPLY_ROUNDS + 1
        && c.witness_nodes <= c.min_clients
        && c.witness_nodes as usize <= MAX_WITNESSES
        && c.cooldown_time != 0
        && c.waiting_for_members_extra_time != 0
        && checks_verification(c);
    if holds {
        Ok(())
    } else {
        Err(Error::ConfigSanityCheckFailed.into())
    }
}

/// What verifiers and tie-breakers need, where there are any.
fn checks_verification(c: &CoordinatorConfig) -> bool {
    c.verification_percent == 0
        || (c.verification_percent <= MAX_VERIFICATION_PERCENT
            && (1..=MAX_VERIFIED_TILES).contains(&c.verified_tiles)
            && (1..=MAX_TIE_BREAKERS).contains(&c.num_tie_breakers))
}

/// `is_new` is false when a model that the program itself has moved to P2P is looked at again.
pub fn check_model(m: &Model, is_new: bool) -> Res {
    let from =
        |kind: u8| matches!(kind, checkpoint::HUB | checkpoint::GCS | checkpoint::LOCAL | checkpoint::CONFIG);
    let shared = matches!(m.checkpoint_kind, checkpoint::P2P | checkpoint::P2P_GCS);
    let holds = m.max_seq_len != 0
        && m.optimizer_kind == OPTIMIZER_DISTRO
        && (from(m.checkpoint_kind) || (shared && !is_new))
        && from(m.checkpoint_origin)
        && m.checkpoint_repo[0] != 0
        && (m.data_path[0] != 0 || m.data_location_kind == DATA_LOCATION_DUMMY)
        && m.compression_topk >= 1
        && m.compression_chunk >= 1
        && m.quantize_1bit == 1
        && matches!(m.data_token_size, 2 | 4)
        && m.architecture <= MAX_ARCHITECTURE
        && m.data_type <= MAX_DATA_TYPE
        && m.data_location_kind <= MAX_DATA_LOCATION
        && m.lr_schedule_kind <= MAX_LR_SCHEDULE;
    if holds {
        Ok(())
    } else {
        Err(Error::ModelSanityCheckFailed.into())
    }
}

/// A cold start's warm-up must fit into the epoch, and what is verified must be such that others can recompute
/// it. Both halves have passed their own checks.
pub fn check_together(c: &CoordinatorConfig, m: &Model) -> Res {
    let rounds = (c.epoch_time - c.warmup_time) / c.max_round_train_time;
    let is_verifiable = c.verification_percent == 0 || m.local_steps <= 1;
    if m.cold_start_warmup_steps as u64 <= rounds && is_verifiable {
        Ok(())
    } else {
        Err(Error::ModelSanityCheckFailed.into())
    }
}

/// The data index stays far enough below 2^64 that no number of rounds overflows it.
const MAX_START_DATA_INDEX: u64 = 1 << 62;

pub fn check_progress(p: &CoordinatorProgress) -> Res {
    if p.step > 0 && p.epoch_start_data_index <= MAX_START_DATA_INDEX {
        Ok(())
    } else {
        Err(Error::ProgressSanityCheckFailed.into())
    }
}
