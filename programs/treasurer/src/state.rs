//! The treasurer's accounts: a funded run, and what a participant has claimed.
use psyche_common::sha256::discriminator;
use psyche_common::{sys, Account, Common, Key, Res};

pub const RUN_SEED: &[u8] = b"Run";
pub const PARTICIPANT_SEED: &[u8] = b"Participant";
pub const BOND_SEED: &[u8] = b"Bond";

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

/// Borsh, like the run. What is still claimable follows from the coordinator's entry alone, so the sums here
/// outlive the entry.
#[cfg(any())]
pub struct Participant {
    pub bump: u8,
    pub claimed_collateral_amount: u64,
    pub claimed_earned_points: u64,
    pub version: u8,
}

/// What a client has at stake in a run beside its points. Borsh, like the run. The collateral lies in the
/// associated token account of this account's address, apart from the run's vault, so that no claim reaches it.
/// The coordinator reads `user`, `coordinator_account` and `amount` when the client joins.
#[cfg(any())]
pub struct Bond {
    pub bump: u8,
    pub run: Key,
    pub user: Key,
    pub coordinator_account: Key,
    pub amount: u64,
}

fn get_u64(data: &[u8], at: usize) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// The sums of a lifetime are for people to read; none is worth refusing somebody's claim.
fn add_u64(data: &mut [u8], at: usize, amount: u64) {
    let sum = get_u64(data, at).saturating_add(amount);
    data[at..at + 8].copy_from_slice(&sum.to_le_bytes());
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
    /// With the bytes of `index` and `bump`, what the run's address signs with.
    pub fn seeds<'a>(&self, index: &'a [u8; 8], bump: &'a [u8; 1]) -> [&'a [u8]; 3] {
        [RUN_SEED, index, bump]
    }
    pub fn check_authority(&self, authority: &Account) -> Res {
        if authority.key() == self.main_authority() {
            Ok(())
        } else {
            Err(Common::WrongAuthority.into())
        }
    }
    pub fn check_coordinator(&self, instance: &Account, account: &Account) -> Res {
        instance.check_key(self.coordinator_instance())?;
        account.check_key(self.coordinator_account())
    }
    /// A point is worth one base unit.
    pub fn add_claimed(&mut self, amount: u64) {
        add_u64(self.data, Run::CLAIMED_AMOUNT, amount);
        add_u64(self.data, Run::CLAIMED_POINTS, amount);
    }
}

/// A checked view of a participant account.
pub struct Participant {
    pub data: &'static mut [u8],
}

impl Participant {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Participant");
    pub const SIZE: usize = 8 + 1 + 16 + 1;
    /// Before the coordinator knew what was claimed.
    const OLD_SIZE: usize = 8 + 1 + 16;
    const VERSION: u8 = 2;

    /// A record of the newest layout.
    pub fn load(account: &Account, program: &Key) -> Res<Participant> {
        let participant = Participant::load_any(account, program)?;
        if participant.data.len() == Participant::SIZE && participant.data[25] == Participant::VERSION {
            Ok(participant)
        } else {
            Err(Common::WrongVersion.into())
        }
    }
    /// A record of the older layout; None if it is newer.
    pub fn load_old(account: &Account, program: &Key) -> Res<Option<Participant>> {
        let participant = Participant::load_any(account, program)?;
        Ok((participant.data.len() == Participant::OLD_SIZE).then_some(participant))
    }
    fn load_any(account: &Account, program: &Key) -> Res<Participant> {
        account.check_owner(program)?;
        let data = account.data_mut();
        let is_known = matches!(data.len(), Participant::OLD_SIZE | Participant::SIZE);
        if !is_known || data[..8] != Participant::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        Ok(Participant { data })
    }
    /// Marks an account of full size as one of this layout.
    pub fn set_version(account: &Account) {
        account.data_mut()[25] = Participant::VERSION;
    }
    /// Checks that the record is `user`'s in `run`.
    pub fn check_address(&self, account: &Account, run: &Key, user: &Key, program: &Key) -> Res {
        let address = sys::create_pda(&[PARTICIPANT_SEED, run, user, &[self.data[8]]], program)?;
        if address == *account.key() {
            Ok(())
        } else {
            Err(Common::WrongPda.into())
        }
    }
    pub fn claimed_points(&self) -> u64 {
        get_u64(self.data, 17)
    }
    /// A point is worth one base unit.
    pub fn add_claimed(&mut self, amount: u64) {
        add_u64(self.data, 9, amount);
        add_u64(self.data, 17, amount);
    }
}

/// A checked view of a bond account.
pub struct Bond {
    pub data: &'static mut [u8],
}

impl Bond {
    pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Bond");
    pub const SIZE: usize = 8 + 1 + 3 * 32 + 8;
    const RUN: usize = 9;
    const USER: usize = 41;
    const COORDINATOR_ACCOUNT: usize = 73;
    const AMOUNT: usize = 105;

    /// Only this program writes bonds, at the address that follows from run and user.
    pub fn load(account: &Account, program: &Key) -> Res<Bond> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() != Bond::SIZE || data[..8] != Bond::DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        Ok(Bond { data })
    }
    /// Writes a new bond of nothing into an account of zeros.
    pub fn init(account: &Account, bump: u8, run: &Account, user: &Key, coordinator_account: &Key) {
        let data = account.data_mut();
        data[..8].copy_from_slice(&Bond::DISCRIMINATOR);
        data[8] = bump;
        data[9..41].copy_from_slice(run.key());
        data[41..73].copy_from_slice(user);
        data[73..105].copy_from_slice(coordinator_account);
    }
    pub fn user(&self) -> &Key {
        self.key(Bond::USER)
    }
    fn key(&self, at: usize) -> &Key {
        unsafe { &*self.data.as_ptr().add(at).cast() }
    }
    pub fn check_run(&self, run: &Account) -> Res {
        run.check_key(self.key(Bond::RUN))
    }
    pub fn check_user(&self, user: &Account) -> Res {
        user.check_key(self.user())
    }
    pub fn coordinator_account(&self) -> &Key {
        self.key(Bond::COORDINATOR_ACCOUNT)
    }
    pub fn amount(&self) -> u64 {
        get_u64(self.data, Bond::AMOUNT)
    }
    pub fn set_amount(&mut self, amount: u64) {
        self.data[Bond::AMOUNT..].copy_from_slice(&amount.to_le_bytes());
    }
    /// With the byte of `bump`, what the bond's address signs with.
    pub fn seeds<'a>(&'a self, bump: &'a [u8; 1]) -> [&'a [u8]; 4] {
        [BOND_SEED, self.key(Bond::RUN), self.user(), bump]
    }
    pub fn bump(&self) -> u8 {
        self.data[8]
    }
}
