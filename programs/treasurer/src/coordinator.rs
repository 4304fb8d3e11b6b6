//! Calls of the coordinator, signed by the run's address.
use psyche_common::decode::Writer;
use psyche_common::invoke::{invoke, Info, Meta};
use psyche_common::sha256::discriminator;
use psyche_common::{ids, Account, Res};

pub const INIT: [u8; 8] = discriminator("global", "init_coordinator");
pub const UPDATE: [u8; 8] = discriminator("global", "update");
pub const SET_FUTURE_EPOCH_RATES: [u8; 8] = discriminator("global", "set_future_epoch_rates");
pub const SET_PAUSED: [u8; 8] = discriminator("global", "set_paused");
pub const UPDATE_CLIENT_VERSION: [u8; 8] = discriminator("global", "update_client_version");

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
}

/// Starts an instruction's data in `buffer`.
pub fn begin<'a>(buffer: &'a mut [u8], tag: &[u8; 8]) -> Res<Writer<'a>> {
    let mut writer = Writer::new(buffer);
    writer.put(tag)?;
    Ok(writer)
}
