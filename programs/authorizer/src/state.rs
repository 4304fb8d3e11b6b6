//! The authorization account.
use psyche_common::decode::Writer;
use psyche_common::sha256::discriminator;
use psyche_common::{Account, Common, Key, Res};

pub const SEED: &[u8] = b"Authorization";
pub const DISCRIMINATOR: [u8; 8] = discriminator("account", "Authorization");
pub const MAX_SCOPE: usize = 32;
pub const MAX_DELEGATES: usize = 256;

/// The Borsh layout, for the IDL generator; the program reads the bytes in place.
#[cfg(any())]
pub struct Authorization {
    pub bump: u8,
    pub grantor: Key,
    pub grantee: Key,
    pub scope: Vec<u8>,
    pub active: bool,
    pub delegates: Vec<Key>,
    pub grantor_update_unix_timestamp: i64,
    pub expires_unix_timestamp: i64,
}

const GRANTOR: usize = 9;
const GRANTEE: usize = 41;
const SCOPE: usize = 73;

/// The expiry came last and late: accounts made before it end without, stay valid, and never expire.
pub const EXPIRY_BYTES: usize = 8;

pub const fn size(scope: usize, num_delegates: usize) -> usize {
    SCOPE + 4 + scope + 1 + 4 + 32 * num_delegates + 8 + EXPIRY_BYTES
}

/// A checked view of an authorization.
pub struct Authorization {
    pub data: &'static mut [u8],
    scope_len: usize,
}

impl Authorization {
    /// Checks owner and kind; only this program can have written it, so that proves its address.
    pub fn load(account: &Account, program: &Key) -> Res<Authorization> {
        account.check_owner(program)?;
        let data = account.data_mut();
        if data.len() < size(0, 0) - EXPIRY_BYTES || data[..8] != DISCRIMINATOR {
            return Err(Common::WrongDiscriminator.into());
        }
        let scope_len = read_u32(data, SCOPE) as usize;
        let authorization = Authorization { data, scope_len };
        let (len, full) = (authorization.data.len(), size(scope_len, authorization.num_delegates()));
        if scope_len > MAX_SCOPE || (len != full && len + EXPIRY_BYTES != full) {
            return Err(Common::WrongVersion.into());
        }
        Ok(authorization)
    }

    pub fn write(account: &Account, bump: u8, grantor: &Key, grantee: &Key, scope: &[u8], now: i64) -> Res {
        let mut writer = Writer::new(account.data_mut());
        writer.put(&DISCRIMINATOR)?;
        writer.put_u8(bump)?;
        writer.put_key(grantor)?;
        writer.put_key(grantee)?;
        writer.put_text(scope)?;
        writer.put_u8(0)?;
        writer.put_u32(0)?;
        writer.put(&now.to_le_bytes())?;
        writer.put(&0i64.to_le_bytes())
    }

    fn active_at(&self) -> usize {
        SCOPE + 4 + self.scope_len
    }
    fn delegates_at(&self) -> usize {
        self.active_at() + 1
    }
    pub fn scope_len(&self) -> usize {
        self.scope_len
    }
    pub fn is_active(&self) -> bool {
        self.data[self.active_at()] == 1
    }
    pub fn num_delegates(&self) -> usize {
        // a length beyond the account never equals its size, which `load` compares
        let at = self.delegates_at();
        if at + 4 > self.data.len() {
            usize::MAX / 64
        } else {
            read_u32(self.data, at) as usize
        }
    }
    fn updated_at(&self) -> usize {
        self.delegates_at() + 4 + 32 * self.num_delegates()
    }
    pub fn updated(&self) -> i64 {
        read_i64(self.data, self.updated_at())
    }
    pub fn has_expiry(&self) -> bool {
        self.data.len() == self.updated_at() + 8 + EXPIRY_BYTES
    }
    /// Unix seconds from which it no longer counts; 0: it always does.
    pub fn expires(&self) -> i64 {
        if self.has_expiry() {
            read_i64(self.data, self.updated_at() + 8)
        } else {
            0
        }
    }
    /// What the grantor says; an account without room for an expiry must not get one.
    pub fn set(&mut self, active: bool, expires: i64, now: i64) {
        let (active_at, updated_at) = (self.active_at(), self.updated_at());
        self.data[active_at] = active as u8;
        self.data[updated_at..updated_at + 8].copy_from_slice(&now.to_le_bytes());
        if self.has_expiry() {
            self.data[updated_at + 8..].copy_from_slice(&expires.to_le_bytes());
        }
    }
    pub fn check_grantor(&self, signer: &Account) -> Res {
        self.check_key(GRANTOR, signer)
    }
    pub fn check_grantee(&self, signer: &Account) -> Res {
        self.check_key(GRANTEE, signer)
    }
    fn check_key(&self, at: usize, signer: &Account) -> Res {
        if self.data[at..at + 32] == *signer.key() {
            Ok(())
        } else {
            Err(Common::WrongAuthority.into())
        }
    }
    /// Where the delegates start in the account's data.
    pub fn delegates_offset(&self) -> usize {
        self.delegates_at()
    }
}

fn read_i64(data: &[u8], at: usize) -> i64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    i64::from_le_bytes(bytes)
}

fn read_u32(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}
