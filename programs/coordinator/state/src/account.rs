//! The run's account, read and written in place.
use crate::error::Error;
use crate::{
    count, CoordinatorConfig, CoordinatorProgress, EpochRates, EpochState, Metadata, Model, MAX_CLIENTS,
};
use psyche_common::sha256::discriminator;
use psyche_common::{Account, Common, Key, Res};

/// 2 since `elected`, `contradictions`, `claimed` and `authorization`; `migrate` brings older accounts here.
pub const VERSION: u64 = 2;
pub const ACCOUNT_SIZE: usize = 85_232;
pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "CoordinatorAccount");

pub mod run_state {
    pub const UNINITIALIZED: u8 = 0;
    pub const WAITING_FOR_MEMBERS: u8 = 1;
    pub const WARMUP: u8 = 2;
    pub const ROUND_TRAIN: u8 = 3;
    pub const ROUND_WITNESS: u8 = 4;
    pub const COOLDOWN: u8 = 5;
    pub const FINISHED: u8 = 6;
    pub const PAUSED: u8 = 7;
}

pub const MAX_DISPUTES: usize = 7;
/// Seats of the tie-breakers of a dispute: as many as judge it, and one more for each party.
pub const MAX_TIE_BREAKER_SEATS: usize = 11;

pub mod dispute_state {
    pub const FREE: u8 = 0;
    pub const OPEN: u8 = 1;
    pub const GUILTY: u8 = 2;
    pub const NOT_GUILTY: u8 = 3;
    pub const UNDECIDED: u8 = 4;
}

/// An accusation: that what `trainer` committed for round `height` is not the work it should be.
///
/// Parties and voters are epoch client indices; a dispute never outlives its epoch.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dispute {
    pub evidence_hash: [u8; 32],
    /// The round whose result is disputed.
    pub height: u32,
    /// The round whose tie-breakers judge it, the first that starts after the verdict; 0 before that.
    pub judge_height: u32,
    pub accuser: u16,
    pub trainer: u16,
    pub state: u8,
    pub reason: u8,
    pub num_votes: u8,
    /// Of `tie_breakers` two thirds decide; three quarters, that a trainer is guilty of not answering.
    pub tie_breakers: u8,
    /// Epoch client index of each voter, with bit 15 set when it votes guilty.
    pub votes: [u16; MAX_TIE_BREAKER_SEATS],
    pub pad0: u16,
}
const _: () = assert!(core::mem::size_of::<Dispute>() == 72);

impl Dispute {
    pub const FREE: Dispute = Dispute {
        evidence_hash: [0; 32],
        height: 0,
        judge_height: 0,
        accuser: 0,
        trainer: 0,
        state: dispute_state::FREE,
        reason: 0,
        num_votes: 0,
        tie_breakers: 0,
        votes: [0; MAX_TIE_BREAKER_SEATS],
        pad0: 0,
    };
}

/// Bytes kept of the address of the authorization that a client joined with: 192 bits, nobody finds another.
pub const AUTHORIZATION_PREFIX: usize = 24;

/// A wallet that has joined the run at some time.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ClientEntry {
    pub signer: Key,
    pub p2p_key: Key,
    pub address_hint: [u8; 64],
    pub earned: u64,
    pub slashed: u64,
    pub active: u64,
    pub last_epoch: u32,
    pub reserved: u32,
    pub claimed: u64,
    pub authorization: [u8; AUTHORIZATION_PREFIX],
}
const _: () = assert!(core::mem::size_of::<ClientEntry>() == 192);

impl ClientEntry {
    /// Points that were earned and neither slashed nor paid out.
    pub fn claimable(&self) -> u64 {
        self.earned.saturating_sub(self.slashed).saturating_sub(self.claimed)
    }

    /// Points that it was slashed beyond what it had: later earnings or a bond pay them.
    pub fn debt(&self) -> u64 {
        self.slashed.saturating_add(self.claimed).saturating_sub(self.earned).min(self.slashed)
    }
}

#[repr(C)]
pub struct CoordinatorAccount {
    pub discriminator: [u8; 8],
    pub version: u64,
    pub nonce: u64,
    pub run_id: [u8; 32],
    pub client_version: [u8; 96],
    pub metadata: Metadata,
    pub run_state: u8,
    pub pending_pause: u8,
    pub pad: [u8; 6],
    pub run_state_start_unix_timestamp: u64,
    pub config: CoordinatorConfig,
    pub model: Model,
    pub progress: CoordinatorProgress,
    pub next_active: u64,
    pub current_rates: EpochRates,
    pub future_rates: EpochRates,
    pub num_entries: u16,
    pub pad2: [u8; 6],
    pub disputes: [Dispute; MAX_DISPUTES],
    /// The steps in which `epoch_state.model_digest` and the first of `older_digests` were attested; 0: unknown.
    pub model_step: u32,
    pub older_step: u32,
    pub epoch_state: EpochState,
    pub entries: [ClientEntry; MAX_CLIENTS],
}
const _: () = assert!(core::mem::size_of::<CoordinatorAccount>() == ACCOUNT_SIZE);

impl CoordinatorAccount {
    /// The account of a run, checked to be ours, whole and of this version.
    pub fn load(account: &Account, program: &Key) -> Res<&'static mut CoordinatorAccount> {
        let coordinator = CoordinatorAccount::load_any_version(account, program)?;
        if coordinator.version != VERSION {
            return Err(Common::WrongVersion.into());
        }
        Ok(coordinator)
    }

    /// Likewise, of whatever version: what is beyond the header may mean something else.
    pub fn load_any_version(account: &Account, program: &Key) -> Res<&'static mut CoordinatorAccount> {
        account.check_owner(program)?;
        if account.len() != ACCOUNT_SIZE {
            return Err(Error::CoordinatorAccountIncorrectSize.into());
        }
        // the loader aligns account data to 8 bytes, which is what the layout needs
        let coordinator = unsafe { &mut *account.data_ptr().cast::<CoordinatorAccount>() };
        if coordinator.discriminator != DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        Ok(coordinator)
    }

    pub fn entries(&self) -> &[ClientEntry] {
        &self.entries[..usize::min(self.num_entries as usize, MAX_CLIENTS)]
    }

    pub fn find_entry(&self, signer: &Key) -> Option<usize> {
        self.entries().iter().position(|entry| entry.signer == *signer)
    }

    /// Index in the epoch of the client with this entry.
    pub fn find_epoch_client(&self, entry: usize) -> Option<usize> {
        self.epoch_state.clients().iter().position(|client| client.entry as usize == entry)
    }

    pub fn is_halted(&self) -> bool {
        matches!(self.run_state, run_state::UNINITIALIZED | run_state::FINISHED | run_state::PAUSED)
    }

    /// Warmup, RoundTrain, RoundWitness or Cooldown.
    pub fn is_in_epoch(&self) -> bool {
        (run_state::WARMUP..=run_state::COOLDOWN).contains(&self.run_state)
    }

    pub fn check_halted(&self) -> Res {
        if self.is_halted() {
            Ok(())
        } else {
            Err(Error::UpdateConfigNotHalted.into())
        }
    }

    /// Every change of the account moves the nonce, so that readers can order what they see.
    pub fn bump_nonce_if(&mut self, changed: bool) {
        if changed {
            self.nonce = self.nonce.wrapping_add(1);
        }
    }

    pub fn num_pending(&self) -> u16 {
        let pending = self.entries().iter().filter(|entry| entry.active == self.next_active);
        pending.count() as u16
    }

    pub fn num_healthy(&self) -> u16 {
        count(&self.epoch_state.healthy())
    }
}

/// An account of zeros on the heap, for native tests of the rules.
#[cfg(not(target_os = "solana"))]
pub fn zeroed_account() -> Box<CoordinatorAccount> {
    // every field is an integer, a float or an array of them, for which all zeros is a value
    Box::new(unsafe { core::mem::zeroed() })
}
