//! Pays for a run: owns it, holds its collateral in a vault, and pays one base unit for each point earned.
#![cfg_attr(target_os = "solana", no_std)]

pub mod coordinator;
pub mod error;
pub mod instructions;
pub mod points;
pub mod state;

use psyche_common::{Key, Raw, Text};
use psyche_coordinator_state::{CoordinatorConfig, CoordinatorProgress, Metadata, Model};

psyche_common::instructions! {
    /// Creates a run that this program owns, and its vault.
    run_create [
        payer: sw, run: w, run_collateral: w, collateral_mint: r, coordinator_instance: w,
        coordinator_account: sw, coordinator_program: r, associated_token_program: r, token_program: r,
        system_program: r,
    ] (
        index: u64, run_id: Text, client_version: Text, main_authority: &'static Key,
        join_authority: &'static Key,
    );
    /// The owner's changes to the run, passed on to the coordinator.
    run_update [
        authority: s, run: r, coordinator_instance: r, coordinator_account: w, coordinator_program: r,
    ] (
        metadata: Option<Raw<Metadata>>, config: Option<Raw<CoordinatorConfig>>, model: Option<Raw<Model>>,
        progress: Option<Raw<CoordinatorProgress>>, epoch_earning_rate_total_shared: Option<u64>,
        epoch_slashing_rate_per_client: Option<u64>, paused: Option<bool>, client_version: Option<Text>,
    );
    /// Creates the record of what a user has claimed.
    participant_create [payer: sw, user: s, run: r, participant: w, system_program: r] ();
    /// Pays a user for earned points; as far as the vault reaches, the rest stays claimable.
    participant_claim [
        user: s, user_collateral: w, run: w, run_collateral: w, collateral_mint: r, coordinator_instance: r,
        coordinator_account: w, coordinator_program: r, participant: w, token_program: r,
    ] (claim_earned_points: u64);
    /// Brings a record of the older layout up to date: the coordinator learns what was claimed. Anybody may.
    participant_migrate [
        payer: sw, user: r, run: r, coordinator_instance: r, coordinator_account: w, coordinator_program: r,
        participant: w, system_program: r,
    ] ();
    /// Puts collateral behind a client: it opens its bond in the run, or adds to it. The bond's own associated
    /// token account must exist.
    bond_post [
        user: sw, user_collateral: w, run: r, collateral_mint: r, bond: w, bond_collateral: w,
        token_program: r, system_program: r,
    ] (amount: u64);
    /// Takes what a client owes for having been slashed out of its bond into the vault. Anybody may.
    bond_slash [
        run: r, run_collateral: w, collateral_mint: r, bond: w, bond_collateral: w, coordinator_instance: r,
        coordinator_account: w, coordinator_program: r, token_program: r,
    ] ();
    /// Gives a bond back whole to a client that is in no epoch, has not joined the next and owes nothing.
    bond_return [
        user: sw, user_collateral: w, collateral_mint: r, bond: w, bond_collateral: w,
        coordinator_account: r, token_program: r,
    ] ();
    /// The owner takes collateral that nobody has earned, 30 days after the run has finished.
    run_withdraw [
        authority: s, authority_collateral: w, run: r, run_collateral: w, collateral_mint: r,
        coordinator_account: r, token_program: r,
    ] (amount: u64);
    /// The owner closes a finished run that owes nothing and holds nothing, and gets its rent.
    run_close [
        authority: s, spill: w, run: w, run_collateral: w, coordinator_instance: w, coordinator_account: w,
        coordinator_program: r, token_program: r,
    ] ();
}
