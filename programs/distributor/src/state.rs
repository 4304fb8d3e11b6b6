//! The distributor's accounts: an airdrop, and what a claimer has redeemed of one of its lines.
use crate::allocation::Allocation;
use crate::error::Error;
use crate::merkle;
use psyche_common::decode::Writer;
use psyche_common::fields::{get_u64, put};
use psyche_common::sha256::discriminator;
use psyche_common::{Account, Common, Key, Raw, Res};

pub const AIRDROP_SEED: &[u8] = b"Airdrop";
pub const CLAIM_SEED: &[u8] = b"Claim";
pub const MAX_METADATA: usize = 300;

/// The root node of a list's Merkle sum tree.
#[repr(C)]
pub struct AirdropList {
    pub merkle_root: [u8; 32],
    pub allocated_collateral_amount: u64,
}

/// Borsh; its fields lie as in this struct without padding, and are read and written in place. Metadata is
/// last and its room is always 300 bytes.
#[cfg(any())]
pub struct Airdrop {
    pub bump: u8,
    pub id: u64,
    pub authority: Key,
    pub collateral_mint: Key,
    pub total_claimed_collateral_amount: u64,
    pub claim_freeze: bool,
    pub merkle_root: [u8; 32],
    pub allocated_collateral_amount: u64,
    /// What the list still promises: allocated, less what was redeemed since the list was set.
    pub reserved_collateral_amount: u64,
    pub guaranteed_until_unix_timestamp: i64,
    /// When claims were frozen; means nothing while they are not.
    pub frozen_unix_timestamp: i64,
    pub metadata: Vec<u8>,
}

/// Borsh, like the airdrop. Never closed: what was redeemed must not be forgotten.
#[cfg(any())]
pub struct Claim {
    pub bump: u8,
    pub claimed_collateral_amount: u64,
}

fn put_u64(data: &mut [u8], at: usize, value: u64) {
    put(data, at, &value.to_le_bytes());
}

fn add_u64(data: &mut [u8], at: usize, amount: u64) -> Res {
    let sum = get_u64(data, at).checked_add(amount).ok_or(Common::ArithmeticOverflow)?;
    put_u64(data, at, sum);
    Ok(())
}

/// A checked view of an airdrop account.
pub struct Airdrop {
    pub data: &'static mut [u8],
}

impl Airdrop {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Airdrop");
    pub const SIZE: usize = Airdrop::METADATA + 4 + MAX_METADATA;
    const ID: usize = 9;
    const AUTHORITY: usize = 17;
    const MINT: usize = 49;
    const CLAIMED: usize = 81;
    const FREEZE: usize = 89;
    const ROOT: usize = 90;
    const ALLOCATED: usize = 122;
    const RESERVED: usize = 130;
    const GUARANTEED_UNTIL: usize = 138;
    const FROZEN: usize = 146;
    const METADATA: usize = 154;

    /// Checks owner, kind and length; only this program can have written it, so that proves its address.
    pub fn load(account: &Account, program: &Key) -> Res<Airdrop> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() != Airdrop::SIZE || data[..8] != Airdrop::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        Ok(Airdrop { data })
    }

    /// Fills a new account, all of whose bytes are zero.
    pub fn write(account: &Account, bump: u8, id: u64, authority: &Key, mint: &Key) -> Res<Airdrop> {
        let mut writer = Writer::new(account.data_mut());
        writer.put(&Airdrop::DISCRIMINATOR)?;
        writer.put_u8(bump)?;
        writer.put_u64(id)?;
        writer.put_key(authority)?;
        writer.put_key(mint)?;
        Ok(Airdrop { data: account.data_mut() })
    }

    fn key(&self, at: usize) -> &Key {
        unsafe { &*self.data.as_ptr().add(at).cast() }
    }
    pub fn bump(&self) -> u8 {
        self.data[8]
    }
    pub fn id(&self) -> u64 {
        get_u64(self.data, Airdrop::ID)
    }
    pub fn check_authority(&self, signer: &Account) -> Res {
        if signer.key() == self.key(Airdrop::AUTHORITY) {
            Ok(())
        } else {
            Err(Common::WrongAuthority.into())
        }
    }
    pub fn collateral_mint(&self) -> &Key {
        self.key(Airdrop::MINT)
    }
    pub fn is_frozen(&self) -> bool {
        self.data[Airdrop::FREEZE] != 0
    }
    pub fn reserved(&self) -> u64 {
        get_u64(self.data, Airdrop::RESERVED)
    }
    pub fn guaranteed_until(&self) -> i64 {
        get_u64(self.data, Airdrop::GUARANTEED_UNTIL) as i64
    }

    /// The guarantee's clock stands still while claims are frozen: a freeze delays, and takes nothing.
    pub fn is_guaranteed(&self, now: i64) -> bool {
        let frozen_since = get_u64(self.data, Airdrop::FROZEN) as i64;
        let clock = if self.is_frozen() { frozen_since } else { now };
        clock < self.guaranteed_until()
    }

    /// Freezes or thaws at `now`; a thaw prolongs a guarantee that was running by the time it stood still.
    pub fn set_frozen(&mut self, frozen: bool, now: i64) {
        if frozen == self.is_frozen() {
            return;
        }
        if frozen {
            put_u64(self.data, Airdrop::FROZEN, now as u64);
        } else if self.is_guaranteed(now) {
            let stood = now.saturating_sub(get_u64(self.data, Airdrop::FROZEN) as i64).max(0);
            self.set_guaranteed_until(self.guaranteed_until().saturating_add(stood));
        }
        self.data[Airdrop::FREEZE] = u8::from(frozen);
    }

    pub fn set_guaranteed_until(&mut self, until: i64) {
        put_u64(self.data, Airdrop::GUARANTEED_UNTIL, until as u64);
    }

    /// Puts a list in place, none of which counts as redeemed.
    pub fn set_list(&mut self, list: &Raw<AirdropList>) -> Res {
        let (root, allocated) = list.bytes.split_at(32);
        if root == [0; 32] {
            return Err(Error::ParamsMerkleRootIsZeroed.into());
        }
        put(self.data, Airdrop::ROOT, root);
        put(self.data, Airdrop::ALLOCATED, allocated);
        put(self.data, Airdrop::RESERVED, allocated);
        Ok(())
    }

    pub fn set_metadata(&mut self, metadata: &[u8]) -> Res {
        if metadata.len() > MAX_METADATA {
            return Err(Error::ParamsMetadataLengthIsTooLarge.into());
        }
        self.data[Airdrop::METADATA..].fill(0);
        Writer::new(&mut self.data[Airdrop::METADATA..]).put_text(metadata)
    }

    /// The proof leads from the allocation to this airdrop's list, root and sum.
    pub fn check_proof(&self, allocation: &Allocation, proof: &[u8]) -> Res {
        let top = merkle::climb(merkle::leaf(allocation), proof).ok_or(Error::ParamsMerkleProofIsInvalid)?;
        let root = self.key(Airdrop::ROOT);
        if top.hash == *root && top.amount == get_u64(self.data, Airdrop::ALLOCATED) {
            Ok(())
        } else {
            Err(Error::ParamsMerkleProofIsInvalid.into())
        }
    }

    pub fn add_claimed(&mut self, amount: u64) -> Res {
        add_u64(self.data, Airdrop::CLAIMED, amount)?;
        let left = self.reserved().checked_sub(amount).ok_or(Common::ArithmeticOverflow)?;
        put_u64(self.data, Airdrop::RESERVED, left);
        Ok(())
    }
}

/// A checked view of a claim account.
pub struct Claim {
    pub data: &'static mut [u8],
}

impl Claim {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Claim");
    pub const SIZE: usize = 8 + 1 + 8;

    pub fn load(account: &Account, program: &Key) -> Res<Claim> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() != Claim::SIZE || data[..8] != Claim::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        Ok(Claim { data })
    }
    pub fn bump(&self) -> u8 {
        self.data[8]
    }
    pub fn claimed(&self) -> u64 {
        get_u64(self.data, 9)
    }
    pub fn add_claimed(&mut self, amount: u64) -> Res {
        add_u64(self.data, 9, amount)
    }
}
