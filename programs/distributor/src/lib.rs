//! Pays a token out to the wallets of a list, as their shares vest. On chain is the Merkle root of the list;
//! each wallet proves its own line.
#![cfg_attr(target_os = "solana", no_std)]

pub mod allocation;
pub mod collateral;
pub mod error;
pub mod instructions;
pub mod merkle;
pub mod state;

use psyche_common::decode::Bytes;
use psyche_common::Raw;
use state::AirdropList;

psyche_common::instructions! {
    /// Creates an airdrop and its vault. Until the guarantee ends, what the list promises stays in the vault.
    airdrop_create [
        payer: sw, authority: s, airdrop: w, airdrop_collateral: w, collateral_mint: r,
        associated_token_program: r, token_program: r, system_program: r,
    ] (id: u64, list: Raw<AirdropList>, guaranteed_until_unix_timestamp: i64, metadata: Bytes);
    /// The authority freezes claims, puts another list in place after the guarantee, or prolongs it.
    airdrop_update [authority: s, airdrop: w] (
        claim_freeze: Option<bool>, list: Option<Raw<AirdropList>>,
        guaranteed_until_unix_timestamp: Option<i64>, metadata: Option<Bytes>,
    );
    /// The authority takes collateral back: what nobody was promised, and after the guarantee everything.
    airdrop_withdraw [
        authority: s, airdrop: r, airdrop_collateral: w, recipient_collateral: w, collateral_mint: r,
        token_program: r,
    ] (collateral_amount: u64);
    /// Creates the record of what a claimer has redeemed of its line `nonce`.
    claim_create [payer: sw, claimer: s, airdrop: r, claim: w, system_program: r] (nonce: u64);
    /// Pays a claimer from the vault. The proof has 40 bytes a level: hash and amount of the sibling.
    claim_redeem [
        claimer: s, claimer_collateral: w, airdrop: w, airdrop_collateral: w, collateral_mint: r, claim: w,
        token_program: r,
    ] (
        nonce: u64, start_unix_timestamp: i64, duration_seconds: u32, end_collateral_amount: u64,
        collateral_amount: u64, merkle_proof: Bytes,
    );
}
