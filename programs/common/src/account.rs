//! The loader's input buffer (aligned format of loaders v2 and v3).
use crate::{Common, Key, Res};

/// More accounts than any of our instructions takes; the loader may pass more, they are ignored.
pub const MAX_ACCOUNTS: usize = 16;
const MAX_PERMITTED_INCREASE: usize = 10_240;

/// One account inside the input buffer.
#[derive(Clone, Copy)]
pub struct Account {
    base: *mut u8,
}

impl Account {
    pub fn is_signer(&self) -> bool {
        unsafe { *self.base.add(1) != 0 }
    }
    pub fn is_writable(&self) -> bool {
        unsafe { *self.base.add(2) != 0 }
    }
    pub fn is_executable(&self) -> bool {
        unsafe { *self.base.add(3) != 0 }
    }
    pub fn key(&self) -> &'static Key {
        unsafe { &*self.base.add(8).cast() }
    }
    pub fn owner(&self) -> &'static Key {
        unsafe { &*self.base.add(40).cast() }
    }
    pub fn lamports_ptr(&self) -> *mut u64 {
        unsafe { self.base.add(72).cast() }
    }
    pub fn lamports(&self) -> u64 {
        unsafe { *self.lamports_ptr() }
    }
    pub fn len(&self) -> usize {
        unsafe { *self.base.add(80).cast::<u64>() as usize }
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn data_ptr(&self) -> *mut u8 {
        unsafe { self.base.add(88) }
    }
    pub fn data(&self) -> &'static [u8] {
        unsafe { core::slice::from_raw_parts(self.data_ptr(), self.len()) }
    }
    /// The account's data for writing. Callers take it once per account and instruction.
    pub fn data_mut(&self) -> &'static mut [u8] {
        unsafe { core::slice::from_raw_parts_mut(self.data_ptr(), self.len()) }
    }

    pub fn check_owner(&self, owner: &Key) -> Res {
        if self.owner() == owner {
            Ok(())
        } else {
            Err(Common::WrongOwner.into())
        }
    }
    pub fn check_key(&self, key: &Key) -> Res {
        if self.key() == key {
            Ok(())
        } else {
            Err(Common::WrongAccount.into())
        }
    }
    pub fn check_program(&self, key: &Key) -> Res {
        if self.key() == key {
            Ok(())
        } else {
            Err(Common::WrongProgram.into())
        }
    }

    /// Changes the length. The loader left room for 10,240 bytes of growth.
    pub fn resize(&self, original: usize, len: usize) -> Res {
        if len > original + MAX_PERMITTED_INCREASE {
            return Err(Common::ArithmeticOverflow.into());
        }
        let old = self.len();
        unsafe { *self.base.add(80).cast::<u64>() = len as u64 };
        if len > old {
            self.data_mut()[old..].fill(0);
        }
        Ok(())
    }

    /// Gives all lamports to `spill`, empties the data and returns the account to the System program.
    pub fn close(&self, spill: &Account) -> Res {
        if self.key() == spill.key() {
            return Err(Common::WrongAccount.into());
        }
        let sum = spill.lamports().checked_add(self.lamports()).ok_or(Common::ArithmeticOverflow)?;
        unsafe {
            *spill.lamports_ptr() = sum;
            *self.lamports_ptr() = 0;
            *self.base.add(40).cast::<Key>() = crate::ids::SYSTEM;
        }
        self.data_mut().fill(0);
        unsafe { *self.base.add(80).cast::<u64>() = 0 };
        Ok(())
    }
}

/// One call of the program.
pub struct Input {
    pub accounts: [Option<Account>; MAX_ACCOUNTS],
    pub data: &'static [u8],
    pub program: &'static Key,
}

impl Input {
    /// # Safety
    /// `p` is the input buffer that the loader passes to the entry point.
    pub unsafe fn parse(p: *mut u8) -> Input {
        unsafe {
            let num = *p.cast::<u64>() as usize;
            let mut accounts = [None; MAX_ACCOUNTS];
            let mut at = p.add(8);
            for i in 0..num {
                let duplicate_of = *at;
                if duplicate_of != 0xff {
                    if i < MAX_ACCOUNTS {
                        accounts[i] = accounts.get(duplicate_of as usize).copied().flatten();
                    }
                    at = at.add(8);
                    continue;
                }
                if i < MAX_ACCOUNTS {
                    accounts[i] = Some(Account { base: at });
                }
                let len = *at.add(80).cast::<u64>() as usize;
                let end = 88 + len + MAX_PERMITTED_INCREASE;
                at = at.add((end + 7) & !7).add(8);
            }
            let len = *at.cast::<u64>() as usize;
            let data = core::slice::from_raw_parts(at.add(8), len);
            Input { accounts, data, program: &*at.add(8 + len).cast() }
        }
    }

    /// Account `i`, checked to sign and to be writable as the instruction table says.
    pub fn account(&self, i: usize, signer: bool, writable: bool) -> Res<Account> {
        let account = self.accounts.get(i).copied().flatten().ok_or(Common::MissingAccount)?;
        if signer && !account.is_signer() {
            return Err(Common::NotSigner.into());
        }
        if writable && !account.is_writable() {
            return Err(Common::NotWritable.into());
        }
        Ok(account)
    }

    /// Account `i` if it was given; the program's own address says that it was not.
    pub fn optional(&self, i: usize) -> Option<Account> {
        self.accounts.get(i).copied().flatten().filter(|account| account.key() != self.program)
    }
}
