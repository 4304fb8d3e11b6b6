//! Lends to whoever runs the training: lenders deposit collateral, the authority takes it out to work with it,
//! and what it repays, in a token of its choice, belongs to the lenders by their shares of the deposits.
#![cfg_attr(target_os = "solana", no_std)]

pub mod claim;
pub mod error;
pub mod instructions;
pub mod state;
pub mod vault;

use psyche_common::Text;

psyche_common::instructions! {
    /// Creates a pool, which takes no deposits yet, and its collateral vault.
    pool_create [
        payer: sw, authority: s, pool: w, pool_collateral: w, collateral_mint: r,
        associated_token_program: r, token_program: r, system_program: r,
    ] (index: u64, metadata: Text);
    /// The authority's changes; what is absent stays.
    pool_update [authority: s, pool: w] (
        max_deposit_collateral_amount: Option<u64>, freeze: Option<bool>, metadata: Option<Text>,
    );
    /// The authority takes collateral out.
    pool_extract [
        authority: s, authority_collateral: w, pool: w, pool_collateral: w, collateral_mint: r,
        token_program: r,
    ] (collateral_amount: u64);
    /// Ends deposits, names the token of repayments and creates the redeemable vault: once, for ever.
    pool_claimable [
        payer: sw, authority: s, pool: w, redeemable_authority: r, pool_redeemable: w, redeemable_mint: r,
        associated_token_program: r, token_program: r, system_program: r,
    ] ();
    /// Creates the record of a lender.
    lender_create [payer: sw, user: s, pool: r, lender: w, system_program: r] ();
    /// A lender puts collateral in.
    lender_deposit [
        user: s, user_collateral: w, pool: w, pool_collateral: w, collateral_mint: r, lender: w,
        token_program: r,
    ] (collateral_amount: u64);
    /// A lender takes from its share of what was repaid.
    lender_claim [
        user: s, user_redeemable: w, pool: w, redeemable_authority: r, pool_redeemable: w,
        redeemable_mint: r, lender: w, token_program: r,
    ] (redeemable_amount: u64);
}
