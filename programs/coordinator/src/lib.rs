//! Keeps the roll of a training run: who takes part, who trains what, whose work counts, who earned what.
#![cfg_attr(target_os = "solana", no_std)]

pub mod event;
pub mod instructions;
pub mod rules;

pub use psyche_coordinator_state as state;
pub use psyche_coordinator_state::error;

use psyche_common::{Key, Raw, Text};
use state::{CoordinatorConfig, CoordinatorProgress, Metadata, Model, WitnessMetadata};

psyche_common::instructions! {
    /// Creates a run in an account that the same transaction has allocated.
    init_coordinator [payer: sw, instance: w, coordinator_account: sw, system_program: r] (
        main_authority: &'static Key, join_authority: &'static Key, run_id: Text, client_version: Text,
    );
    /// Sets parts of the run's description and configuration.
    update [authority: s, instance: r, coordinator_account: w] (
        metadata: Option<Raw<Metadata>>, config: Option<Raw<CoordinatorConfig>>, model: Option<Raw<Model>>,
        progress: Option<Raw<CoordinatorProgress>>,
    );
    /// Sets which client version the run wants.
    update_client_version [authority: s, instance: r, coordinator_account: w] (client_version: Text);
    /// Sets what the clients of the next epochs share.
    set_future_epoch_rates [authority: s, instance: r, coordinator_account: w] (
        earning_rate_total_shared: Option<u64>, slashing_rate_per_client: Option<u64>,
    );
    /// Pauses a run (after the epoch, if one is running) or lets it go on.
    set_paused [authority: s, instance: r, coordinator_account: w] (paused: bool);
    /// Enters the signer for the next epoch. The key that names it in the mesh signs too, so that nobody can
    /// take another's. A run that asks for a bond needs the treasurer's account of it.
    join_run [user: s, p2p: s, instance: r, coordinator_account: w, authorization: r, bond: o] (
        address_hint: &'static [u8; 64],
    );
    /// A client says where it is to be reached from now on.
    announce [user: s, instance: r, coordinator_account: w] (address_hint: &'static [u8; 64]);
    /// Takes a client whose authorization is switched off, expired or closed out of the next epoch. Anybody may
    /// send it.
    remove_unauthorized [user: s, instance: r, coordinator_account: w, authorization: r] (entry: u16);
    /// The signer leaves; what it has earned stays.
    leave_run [user: s, instance: r, coordinator_account: w] ();
    /// Lets time act on the run. Anybody may send it.
    tick [user: s, instance: r, coordinator_account: w] ();
    /// An elected witness attests, in the round of `step`, the results of the round before.
    witness [user: s, instance: r, coordinator_account: w] (
        index: u16, step: u32, participants: [u64; 4], broadcast_bloom: [u64; 16],
        broadcast_merkle: &'static [u8; 32], state_digest: &'static [u8; 32], metadata: Raw<WitnessMetadata>,
    );
    /// A client reports that its model is in place.
    warmup_witness [user: s, instance: r, coordinator_account: w] (index: u16);
    /// Reports a client that the witnesses did not see.
    health_check [user: s, instance: r, coordinator_account: w] (index: u16);
    /// The verifier drawn for it accuses a trainer, for what it committed in the round of `height`.
    verdict [user: s, instance: r, coordinator_account: w] (
        index: u16, trainer: u16, height: u32, reason: u8, evidence_hash: &'static [u8; 32],
    );
    /// A tie-breaker says whether the evidence convicts.
    vote [user: s, instance: r, coordinator_account: w] (
        index: u16, evidence_hash: &'static [u8; 32], is_guilty: bool,
    );
    /// Names the place of a new checkpoint.
    checkpoint [user: s, instance: r, coordinator_account: w] (
        kind: u8, repo: &'static [u8; 128], revision: &'static [u8; 64],
    );
    /// The owner has paid a client for points.
    record_claim [authority: s, instance: r, coordinator_account: w] (user: &'static Key, points: u64);
    /// A bond has paid for points that a client was slashed beyond what it had earned.
    settle_debt [authority: s, instance: r, coordinator_account: w] (user: &'static Key, points: u64);
    /// Brings an account that an older program wrote to this version. Anybody may send it.
    migrate [user: s, instance: r, coordinator_account: w] ();
    /// Closes a halted run and returns its rent.
    free_coordinator [authority: s, spill: w, instance: w, coordinator_account: w] ();
}
