//! The mining pool's accounts: a pool, and what a lender has put in and taken out.
use crate::error::Error;
use psyche_common::decode::Writer;
use psyche_common::fields::{get_key, get_u128, get_u64, put};
use psyche_common::sha256::discriminator;
use psyche_common::{sys, Account, Common, Key, Res};

pub const POOL_SEED: &[u8] = b"Pool";
pub const LENDER_SEED: &[u8] = b"Lender";
/// Of the address that owns the redeemable vault. It is not the pool's, so that the two vaults differ even when
/// both hold the same mint, and nothing signed for one can move what is in the other.
pub const REDEEMABLE_SEED: &[u8] = b"Redeemable";

pub const MAX_METADATA: usize = 400;

/// Borsh; its fields lie as in this struct without padding, and are read and written in place.
#[cfg(any())]
pub struct Pool {
    pub bump: u8,
    pub index: u64,
    pub authority: Key,
    pub collateral_mint: Key,
    pub collateral_vault: Key,
    pub max_deposit_collateral_amount: u64,
    pub total_deposited_collateral_amount: u64,
    pub total_extracted_collateral_amount: u64,
    pub claiming_enabled: bool,
    pub redeemable_mint: Key,
    pub redeemable_vault: Key,
    pub redeemable_bump: u8,
    pub total_claimed_redeemable_amount: u128,
    pub freeze: bool,
    pub metadata_length: u16,
    pub metadata: [u8; 400],
}

/// Borsh, like the pool.
#[cfg(any())]
pub struct Lender {
    pub bump: u8,
    pub deposited_collateral_amount: u64,
    pub claimed_redeemable_amount: u128,
}

/// A checked view of a pool account.
pub struct Pool {
    data: &'static mut [u8],
}

impl Pool {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Pool");
    pub const SIZE: usize = Pool::METADATA + MAX_METADATA;
    const MAX_DEPOSIT: usize = 113;
    const TOTAL_DEPOSITED: usize = 121;
    const TOTAL_EXTRACTED: usize = 129;
    const CLAIMING_ENABLED: usize = 137;
    const REDEEMABLE_MINT: usize = 138;
    const REDEEMABLE_VAULT: usize = 170;
    const REDEEMABLE_BUMP: usize = 202;
    const TOTAL_CLAIMED: usize = 203;
    const FREEZE: usize = 219;
    const METADATA_LENGTH: usize = 220;
    const METADATA: usize = 222;

    /// Checks owner, kind, length and address.
    pub fn load(account: &Account, program: &Key) -> Res<Pool> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() != Pool::SIZE || data[..8] != Pool::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        let pool = Pool { data };
        check_address(account, &[POOL_SEED, &pool.number(), &[pool.bump()]], program)?;
        Ok(pool)
    }

    /// The first content of an account of zeros; everything left out is zero.
    pub fn write(
        account: &Account,
        bump: u8,
        index: u64,
        authority: &Key,
        mint: &Key,
        vault: &Key,
    ) -> Res<Pool> {
        let mut writer = Writer::new(account.data_mut());
        writer.put(&Pool::DISCRIMINATOR)?;
        writer.put_u8(bump)?;
        writer.put_u64(index)?;
        writer.put_key(authority)?;
        writer.put_key(mint)?;
        writer.put_key(vault)?;
        Ok(Pool { data: account.data_mut() })
    }

    pub fn bump(&self) -> u8 {
        self.data[8]
    }
    /// The index as a seed.
    pub fn number(&self) -> [u8; 8] {
        get_u64(self.data, 9).to_le_bytes()
    }
    pub fn collateral_mint(&self) -> Key {
        get_key(self.data, 49)
    }
    pub fn collateral_vault(&self) -> Key {
        get_key(self.data, 81)
    }
    pub fn max_deposit(&self) -> u64 {
        get_u64(self.data, Pool::MAX_DEPOSIT)
    }
    pub fn set_max_deposit(&mut self, amount: u64) {
        put(self.data, Pool::MAX_DEPOSIT, &amount.to_le_bytes());
    }
    pub fn total_deposited(&self) -> u64 {
        get_u64(self.data, Pool::TOTAL_DEPOSITED)
    }
    pub fn set_total_deposited(&mut self, amount: u64) {
        put(self.data, Pool::TOTAL_DEPOSITED, &amount.to_le_bytes());
    }
    pub fn add_extracted(&mut self, amount: u64) -> Res {
        let sum = get_u64(self.data, Pool::TOTAL_EXTRACTED).checked_add(amount);
        put(self.data, Pool::TOTAL_EXTRACTED, &sum.ok_or(Common::ArithmeticOverflow)?.to_le_bytes());
        Ok(())
    }
    pub fn redeemable_mint(&self) -> Key {
        get_key(self.data, Pool::REDEEMABLE_MINT)
    }
    pub fn redeemable_vault(&self) -> Key {
        get_key(self.data, Pool::REDEEMABLE_VAULT)
    }
    pub fn redeemable_bump(&self) -> u8 {
        self.data[Pool::REDEEMABLE_BUMP]
    }
    /// There is no way back.
    pub fn enable_claiming(&mut self, mint: &Key, vault: &Key, bump: u8) {
        self.data[Pool::CLAIMING_ENABLED] = 1;
        put(self.data, Pool::REDEEMABLE_MINT, mint);
        put(self.data, Pool::REDEEMABLE_VAULT, vault);
        self.data[Pool::REDEEMABLE_BUMP] = bump;
    }
    pub fn total_claimed(&self) -> u128 {
        get_u128(self.data, Pool::TOTAL_CLAIMED)
    }
    pub fn add_claimed(&mut self, amount: u64) -> Res {
        let sum = self.total_claimed().checked_add(amount as u128).ok_or(Common::ArithmeticOverflow)?;
        put(self.data, Pool::TOTAL_CLAIMED, &sum.to_le_bytes());
        Ok(())
    }
    pub fn set_freeze(&mut self, freeze: bool) {
        self.data[Pool::FREEZE] = freeze as u8;
    }
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Res {
        if metadata.len() > MAX_METADATA {
            return Err(Error::ParamsMetadataLengthIsTooLarge.into());
        }
        put(self.data, Pool::METADATA_LENGTH, &(metadata.len() as u16).to_le_bytes());
        self.data[Pool::METADATA..].fill(0);
        put(self.data, Pool::METADATA, metadata);
        Ok(())
    }

    pub fn check_authority(&self, signer: &Account) -> Res {
        if get_key(self.data, 17) == *signer.key() {
            Ok(())
        } else {
            Err(Common::WrongAuthority.into())
        }
    }
    pub fn check_not_frozen(&self) -> Res {
        if self.data[Pool::FREEZE] == 0 {
            Ok(())
        } else {
            Err(Error::PoolFreezeIsTrue.into())
        }
    }
    pub fn check_claiming(&self, enabled: bool) -> Res {
        match (self.data[Pool::CLAIMING_ENABLED] != 0, enabled) {
            (true, false) => Err(Error::PoolClaimingEnabledIsTrue.into()),
            (false, true) => Err(Error::PoolClaimingEnabledIsFalse.into()),
            _ => Ok(()),
        }
    }
}

/// A checked view of a lender account.
pub struct Lender {
    data: &'static mut [u8],
}

impl Lender {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Lender");
    pub const SIZE: usize = 8 + 1 + 8 + 16;
    const DEPOSITED: usize = 9;
    const CLAIMED: usize = 17;

    /// Checks owner, kind and length, and by its address that it is the record of `user` in `pool`.
    pub fn load(account: &Account, pool: &Account, user: &Account, program: &Key) -> Res<Lender> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() != Lender::SIZE || data[..8] != Lender::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        check_address(account, &[LENDER_SEED, pool.key(), user.key(), &[data[8]]], program)?;
        Ok(Lender { data })
    }

    /// The first content of an account of zeros.
    pub fn write(account: &Account, bump: u8) -> Res {
        let mut writer = Writer::new(account.data_mut());
        writer.put(&Lender::DISCRIMINATOR)?;
        writer.put_u8(bump)
    }

    pub fn deposited(&self) -> u64 {
        get_u64(self.data, Lender::DEPOSITED)
    }
    pub fn add_deposited(&mut self, amount: u64) -> Res {
        let sum = self.deposited().checked_add(amount).ok_or(Common::ArithmeticOverflow)?;
        put(self.data, Lender::DEPOSITED, &sum.to_le_bytes());
        Ok(())
    }
    pub fn claimed(&self) -> u128 {
        get_u128(self.data, Lender::CLAIMED)
    }
    pub fn add_claimed(&mut self, amount: u64) -> Res {
        let sum = self.claimed().checked_add(amount as u128).ok_or(Common::ArithmeticOverflow)?;
        put(self.data, Lender::CLAIMED, &sum.to_le_bytes());
        Ok(())
    }
}

/// `seeds` hold the bump that was found when the account was made, which is the canonical one.
fn check_address(account: &Account, seeds: &[&[u8]], program: &Key) -> Res {
    match sys::create_pda(seeds, program) {
        Ok(key) if key == *account.key() => Ok(()),
        _ => Err(Common::WrongPda.into()),
    }
}
