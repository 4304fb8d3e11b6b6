//! Calls of other programs by `sol_invoke_signed_c`, without allocation.
use crate::{Account, Key, Res};

#[repr(C)]
pub struct Meta {
    key: *const Key,
    writable: bool,
    signer: bool,
}

impl Meta {
    pub fn new(account: &Account, signer: bool, writable: bool) -> Meta {
        Meta { key: account.key(), writable, signer }
    }
}

#[repr(C)]
struct Instruction {
    program: *const Key,
    metas: *const Meta,
    metas_len: u64,
    data: *const u8,
    data_len: u64,
}

#[repr(C)]
pub struct Info {
    key: *const Key,
    lamports: *mut u64,
    data_len: u64,
    data: *mut u8,
    owner: *const Key,
    rent_epoch: u64,
    signer: bool,
    writable: bool,
    executable: bool,
}

impl Info {
    pub fn of(account: &Account) -> Info {
        Info {
            key: account.key(),
            lamports: account.lamports_ptr(),
            data_len: account.len() as u64,
            data: account.data_ptr(),
            owner: account.owner(),
            rent_epoch: u64::MAX,
            signer: account.is_signer(),
            writable: account.is_writable(),
            executable: account.is_executable(),
        }
    }
}

/// Calls `program`; `seeds` (without or with bump, as the address needs) let one of our PDAs sign.
pub fn invoke(program: &Account, metas: &[Meta], infos: &[Info], data: &[u8], seeds: &[&[u8]]) -> Res {
    let instruction = Instruction {
        program: program.key(),
        metas: metas.as_ptr(),
        metas_len: metas.len() as u64,
        data: data.as_ptr(),
        data_len: data.len() as u64,
    };
    let signers: [&[&[u8]]; 1] = [seeds];
    let num_signers = u64::from(!seeds.is_empty());
    call(&instruction, infos, &signers, num_signers)
}

#[cfg(target_os = "solana")]
fn call(instruction: &Instruction, infos: &[Info], signers: &[&[&[u8]]; 1], num_signers: u64) -> Res {
    let code = unsafe {
        crate::sys::sol_invoke_signed_c(
            (instruction as *const Instruction).cast(),
            infos.as_ptr().cast(),
            infos.len() as u64,
            signers.as_ptr().cast(),
            num_signers,
        )
    };
    if code == 0 {
        Ok(())
    } else {
        Err(crate::Failure(code))
    }
}

#[cfg(not(target_os = "solana"))]
fn call(_: &Instruction, _: &[Info], _: &[&[&[u8]]; 1], _: u64) -> Res {
    Err(crate::Common::WrongProgram.into())
}
