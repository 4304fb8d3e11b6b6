//! The treasurer's accounts: a funded run, and what a participant has claimed.
use psyche_common::sha256::discriminator;
use psyche_common::{Account, Common, Key, Res};

pub const RUN_SEED: &[u8] = b"Run";
pub const PARTICIPANT_SEED: &[u8] = b"Participant";

/// Borsh; its fields lie as in this struct without padding, and are read and written in place.
#[cfg(any())]
pub struct Run {
    pub bump: u8,
    pub index: u64,
    pub main_authority: Key,
    pub join_authority: Key,
    pub coordinator_account: Key,
    pub coordinator_instance: Key,
    pub collateral_mint: Key,
    pub total_claimed_collateral_amount: u64,
    pub total_claimed_earned_points: u64,
}

/// Borsh, like the run.
#[cfg(any())]
pub struct Participant {
    pub bump: u8,
    pub claimed_collateral_amount: u64,
    pub claimed_earned_points: u64,
}

fn get_u64(data: &[u8], at: usize) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn add_u64(data: &mut [u8], at: usize, amount: u64) -> Res {
    let sum = get_u64(data, at).checked_add(amount).ok_or(Common::ArithmeticOverflow)?;
    data[at..at + 8].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// A checked view of a run account.
pub struct Run {
    pub data: &'static mut [u8],
}

impl Run {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Run");
    pub const SIZE: usize = 8 + 1 + 8 + 5 * 32 + 16;
    const CLAIMED_AMOUNT: usize = 177;
    const CLAIMED_POINTS: usize = 185;

    pub fn load(account: &Account, program: &Key) -> Res<Run> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() != Run::SIZE || data[..8] != Run::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        Ok(Run { data })
    }
    fn key(&self, at: usize) -> &Key {
        unsafe { &*self.data.as_ptr().add(at).cast() }
    }
    pub fn bump(&self) -> u8 {
        self.data[8]
    }
    pub fn index(&self) -> u64 {
        get_u64(self.data, 9)
    }
    pub fn main_authority(&self) -> &Key {
        self.key(17)
    }
    pub fn coordinator_account(&self) -> &Key {
        self.key(81)
    }
    pub fn coordinator_instance(&self) -> &Key {
        self.key(113)
    }
    pub fn collateral_mint(&self) -> &Key {
        self.key(145)
    }
    pub fn add_claimed(&mut self, points: u64, amount: u64) -> Res {
        add_u64(self.data, Run::CLAIMED_AMOUNT, amount)?;
        add_u64(self.data, Run::CLAIMED_POINTS, points)
    }
}

/// A checked view of a participant account.
pub struct Participant {
    pub data: &'static mut [u8],
}

impl Participant {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Participant");
    pub const SIZE: usize = 8 + 1 + 16;

    pub fn load(account: &Account, program: &Key) -> Res<Participant> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() != Participant::SIZE || data[..8] != Participant::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        Ok(Participant { data })
    }
    pub fn bump(&self) -> u8 {
        self.data[8]
    }
    pub fn claimed_points(&self) -> u64 {
        get_u64(self.data, 17)
    }
    pub fn add_claimed(&mut self, points: u64, amount: u64) -> Res {
        add_u64(self.data, 9, amount)?;
        add_u64(self.data, 17, points)
    }
}
