//! The run's instance: a small account at an address that follows from the run id.
use psyche_common::decode::Writer;
use psyche_common::sha256::discriminator;
use psyche_common::{Account, Common, Key, Res};

pub const INSTANCE_SEED: &[u8] = b"coordinator";
pub const INSTANCE_DISCRIMINATOR: [u8; 8] = discriminator("account", "CoordinatorInstance");
pub const MAX_RUN_ID: usize = 32;
pub const INSTANCE_SIZE: usize = 8 + 1 + 3 * 32 + 4 + MAX_RUN_ID;

const MAIN_AUTHORITY: usize = 9;
const JOIN_AUTHORITY: usize = 41;
const COORDINATOR_ACCOUNT: usize = 73;

/// The Borsh layout, for the IDL generator; the program reads the bytes in place. Only this program can have
/// written them, so an owner check proves the account's address.
#[cfg(any())]
pub struct CoordinatorInstance {
    pub bump: u8,
    pub main_authority: Key,
    pub join_authority: Key,
    pub coordinator_account: Key,
    pub run_id: String,
}

/// A checked view of an instance account.
pub struct Instance {
    data: &'static [u8],
}

impl Instance {
    /// Checks owner, kind, and that it belongs to `coordinator_account`.
    pub fn load(account: &Account, coordinator_account: &Account, program: &Key) -> Res<Instance> {
        account.check_owner(program)?;
        let data = account.data();
        if data.len() != INSTANCE_SIZE || data[..8] != INSTANCE_DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        let instance = Instance { data };
        coordinator_account.check_key(instance.key(COORDINATOR_ACCOUNT))?;
        Ok(instance)
    }

    fn key(&self, at: usize) -> &'static Key {
        unsafe { &*self.data.as_ptr().add(at).cast() }
    }
    pub fn join_authority(&self) -> &'static Key {
        self.key(JOIN_AUTHORITY)
    }
    pub fn main_authority(&self) -> &'static Key {
        self.key(MAIN_AUTHORITY)
    }
    pub fn check_authority(&self, authority: &Account) -> Res {
        if authority.key() == self.main_authority() {
            Ok(())
        } else {
            Err(Common::WrongAuthority.into())
        }
    }

    pub fn write(
        account: &Account,
        bump: u8,
        main_authority: &Key,
        join_authority: &Key,
        coordinator_account: &Key,
        run_id: &[u8],
    ) -> Res {
        let mut writer = Writer::new(account.data_mut());
        writer.put(&INSTANCE_DISCRIMINATOR)?;
        writer.put_u8(bump)?;
        writer.put_key(main_authority)?;
        writer.put_key(join_authority)?;
        writer.put_key(coordinator_account)?;
        writer.put_text(run_id)
    }
}
