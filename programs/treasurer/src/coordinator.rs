//! Calls of the coordinator, signed by the run's address.
use psyche_common::decode::Writer;
use psyche_common::invoke::{invoke, Info, Meta};
use psyche_common::sha256::discriminator;
use psyche_common::{ids, Account, Key, Res};

pub const INIT: [u8; 8] = discriminator("global", "init_coordinator");
pub const UPDATE: [u8; 8] = discriminator("global", "update");
pub const SET_FUTURE_EPOCH_RATES: [u8; 8] = discriminator("global", "set_future_epoch_rates");
pub const SET_PAUSED: [u8; 8] = discriminator("global", "set_paused");
pub const UPDATE_CLIENT_VERSION: [u8; 8] = discriminator("global", "update_client_version");
const RECORD_CLAIM: [u8; 8] = discriminator("global", "record_claim");
const SETTLE_DEBT: [u8; 8] = discriminator("global", "settle_debt");
const FREE_COORDINATOR: [u8; 8] = discriminator("global", "free_coordinator");

/// The accounts of an owner's instruction; the run is the owner.
pub struct Owned<'a> {
    pub run: &'a Account,
    pub instance: &'a Account,
    pub coordinator_account: &'a Account,
    pub program: &'a Account,
    pub seeds: &'a [&'a [u8]],
}

impl Owned<'_> {
    /// Calls an owner's instruction with the Borsh bytes in `writer`'s buffer.
    pub fn call(&self, data: &[u8]) -> Res {
        self.program.check_program(&ids::COORDINATOR)?;
        let metas = [
            Meta::new(self.run, true, false),
            Meta::new(self.instance, false, false),
            Meta::new(self.coordinator_account, false, true),
        ];
        let infos = [
            Info::of(self.run),
            Info::of(self.instance),
            Info::of(self.coordinator_account),
            Info::of(self.program),
        ];
        invoke(self.program, &metas, &infos, data, self.seeds)
    }

    /// Writes into the user's entry that `points` of it have been paid.
    pub fn record_claim(&self, user: &Key, points: u64) -> Res {
        self.call_with_points(&RECORD_CLAIM, user, points)
    }

    /// Writes into the user's entry that its bond has paid for `points` of its debt.
    pub fn settle_debt(&self, user: &Key, points: u64) -> Res {
        self.call_with_points(&SETTLE_DEBT, user, points)
    }

    fn call_with_points(&self, tag: &[u8; 8], user: &Key, points: u64) -> Res {
        let mut buffer = [0u8; 8 + 32 + 8];
        let mut writer = begin(&mut buffer, tag)?;
        writer.put_key(user)?;
        writer.put_u64(points)?;
        self.call(&buffer)
    }

    /// Closes the run's account and instance, whose rent goes to `spill`.
    pub fn free(&self, spill: &Account) -> Res {
        self.program.check_program(&ids::COORDINATOR)?;
        let metas = [
            Meta::new(self.run, true, false),
            Meta::new(spill, false, true),
            Meta::new(self.instance, false, true),
            Meta::new(self.coordinator_account, false, true),
        ];
        let infos = [
            Info::of(self.run),
            Info::of(spill),
            Info::of(self.instance),
            Info::of(self.coordinator_account),
            Info::of(self.program),
        ];
        invoke(self.program, &metas, &infos, &FREE_COORDINATOR, self.seeds)
    }
}

/// Starts an instruction's data in `buffer`.
pub fn begin<'a>(buffer: &'a mut [u8], tag: &[u8; 8]) -> Res<Writer<'a>> {
    let mut writer = Writer::new(buffer);
    writer.put(tag)?;
    Ok(writer)
}
