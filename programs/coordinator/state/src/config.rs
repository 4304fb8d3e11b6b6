//! What a run's owner sets.

pub const CONFIG_SIZE: usize = 128;
pub const MODEL_SIZE: usize = 520;

/// Half of the clients train at least.
pub const MAX_VERIFICATION_PERCENT: u8 = 50;
pub const MAX_VERIFIED_TILES: u16 = 1024;
pub const MAX_TIE_BREAKERS: u8 = 9;

/// What runs made before there was a choice get.
pub const DEFAULT_MAX_WITNESS_CONTRADICTIONS: u16 = 16;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CoordinatorConfig {
    pub warmup_time: u64,
    pub cooldown_time: u64,
    pub max_round_train_time: u64,
    pub round_witness_time: u64,
    pub global_batch_size_warmup_tokens: u64,
    pub epoch_time: u64,
    pub total_steps: u32,
    pub init_min_clients: u16,
    pub min_clients: u16,
    pub witness_nodes: u16,
    pub global_batch_size_start: u16,
    pub global_batch_size_end: u16,
    pub verification_percent: u8,
    pub waiting_for_members_extra_time: u8,
    pub max_witness_contradictions: u16,
    /// Tiles that a verifier asks a trainer for.
    pub verified_tiles: u16,
    /// Limits of a check, in millionths; the program stores them for clients. No alignment is asked for at 0.
    pub min_alignment: u32,
    pub max_residual: u32,
    pub max_violation: u32,
    pub min_jaccard: u32,
    pub num_tie_breakers: u8,
    /// Refusals that turned out answered, of an epoch, that a party to them gets away with.
    pub max_refusals: u8,
    pub pad0: u16,
    /// Collateral that a client must have bonded with the treasurer to join.
    pub required_bond: u64,
    pub reserved: [u8; 32],
}
const _: () = assert!(core::mem::size_of::<CoordinatorConfig>() == CONFIG_SIZE);

pub mod checkpoint {
    pub const EPHEMERAL: u8 = 0;
    pub const DUMMY: u8 = 1;
    pub const HUB: u8 = 2;
    pub const P2P: u8 = 3;
    pub const GCS: u8 = 4;
    pub const P2P_GCS: u8 = 5;
    pub const LOCAL: u8 = 6;
    pub const CONFIG: u8 = 7;
}

pub const OPTIMIZER_DISTRO: u8 = 2;
pub const DATA_LOCATION_DUMMY: u8 = 0;
pub const MAX_ARCHITECTURE: u8 = 3;
pub const MAX_DATA_TYPE: u8 = 1;
pub const MAX_DATA_LOCATION: u8 = 5;
pub const MAX_LR_SCHEDULE: u8 = 3;

/// The model and how it is trained. Floats are stored for clients, never computed with.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Model {
    pub architecture: u8,
    pub data_type: u8,
    pub checkpoint_kind: u8,
    pub checkpoint_origin: u8,
    pub data_location_kind: u8,
    pub lr_schedule_kind: u8,
    pub optimizer_kind: u8,
    pub quantize_1bit: u8,
    pub max_seq_len: u32,
    pub cold_start_warmup_steps: u32,
    pub init_seed: u64,
    pub checkpoint_repo: [u8; 128],
    pub checkpoint_revision: [u8; 64],
    pub data_path: [u8; 128],
    pub lr_base: f64,
    pub lr_warmup_init: f64,
    pub lr_final: f64,
    pub lr_linear_final: f64,
    pub lr_warmup_steps: u32,
    pub lr_total_steps: u32,
    pub lr_stable_steps: u32,
    pub lr_cosine_decay_steps: u32,
    pub lr_linear_decay_steps: u32,
    pub clip_grad_norm: f32,
    pub weight_decay: f32,
    pub compression_decay: f32,
    pub adam_beta1: f32,
    pub adam_beta2: f32,
    pub adam_eps: f32,
    pub compression_topk: u16,
    pub compression_chunk: u16,
    pub data_token_size: u8,
    /// Sizes that a step may have; 0, as in runs made before there was a choice, is 1.
    pub step_levels: u8,
    pub lr_outside_momentum: u8,
    /// Private AdamW steps of a trainer in a round; 0, as in runs made before there was a choice, is 1: none.
    pub local_steps: u8,
    /// Of embedding and head; 0 is 1.
    pub vocab_lr_scale: f32,
    pub reserved: [u8; 88],
}
const _: () = assert!(core::mem::size_of::<Model>() == MODEL_SIZE);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct CoordinatorProgress {
    pub step: u32,
    pub epoch: u16,
    pub pad: u16,
    pub epoch_start_data_index: u64,
}
const _: () = assert!(core::mem::size_of::<CoordinatorProgress>() == 16);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Metadata {
    pub name: [u8; 64],
    pub description: [u8; 280],
    pub num_parameters: u64,
    pub vocab_size: u64,
}
const _: () = assert!(core::mem::size_of::<Metadata>() == 360);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct EpochRates {
    pub earning_rate_total_shared: u64,
    pub slashing_rate_per_client: u64,
}

/// Sent with a witness for those who watch; the program does not store it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct WitnessMetadata {
    pub tokens_per_sec: f32,
    pub bandwidth_per_sec: f32,
    pub loss: f32,
    pub efficiency: f32,
}
const _: () = assert!(core::mem::size_of::<WitnessMetadata>() == 16);
