//! Syscalls. On the host, where only the pure rules are tested, those with an answer have a stand-in.
#[cfg(target_os = "solana")]
use crate::Failure;
use crate::{Key, Res};

#[cfg(target_os = "solana")]
mod raw {
    extern "C" {
        pub fn sol_panic_(file: *const u8, len: u64, line: u64, column: u64) -> !;
        pub fn sol_sha256(slices: *const u8, num: u64, out: *mut u8) -> u64;
        pub fn sol_create_program_address(
            seeds: *const u8,
            num: u64,
            program: *const u8,
            out: *mut u8,
        ) -> u64;
        pub fn sol_try_find_program_address(
            seeds: *const u8,
            num: u64,
            program: *const u8,
            out: *mut u8,
            bump: *mut u8,
        ) -> u64;
        pub fn sol_invoke_signed_c(
            instruction: *const u8,
            infos: *const u8,
            num_infos: u64,
            seeds: *const u8,
            num_seeds: u64,
        ) -> u64;
        pub fn sol_get_clock_sysvar(out: *mut u8) -> u64;
        pub fn sol_get_rent_sysvar(out: *mut u8) -> u64;
        pub fn sol_get_sysvar(id: *const u8, out: *mut u8, offset: u64, len: u64) -> u64;
        pub fn sol_log_data(slices: *const u8, num: u64);
    }
}
#[cfg(target_os = "solana")]
pub use raw::sol_invoke_signed_c;

#[cfg(target_os = "solana")]
fn check(code: u64) -> Res {
    if code == 0 {
        Ok(())
    } else {
        Err(Failure(code))
    }
}

#[cfg(target_os = "solana")]
pub fn panic(info: &core::panic::PanicInfo) -> ! {
    let (file, line, column) = match info.location() {
        Some(l) => (l.file(), l.line(), l.column()),
        None => ("?", 0, 0),
    };
    unsafe { raw::sol_panic_(file.as_ptr(), file.len() as u64, line as u64, column as u64) }
}

/// The Clock sysvar.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Clock {
    pub slot: u64,
    pub epoch_start_timestamp: i64,
    pub epoch: u64,
    pub leader_schedule_epoch: u64,
    pub unix_timestamp: i64,
}

/// The Rent sysvar.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Rent {
    pub lamports_per_byte_year: u64,
    pub threshold_bits: u64,
    pub burn_percent: u8,
    pad: [u8; 7],
}

#[cfg(target_os = "solana")]
pub fn clock() -> Res<Clock> {
    let mut clock = Clock::default();
    check(unsafe { raw::sol_get_clock_sysvar((&raw mut clock).cast()) })?;
    Ok(clock)
}

#[cfg(target_os = "solana")]
pub fn rent() -> Res<Rent> {
    let mut rent = Rent::default();
    check(unsafe { raw::sol_get_rent_sysvar((&raw mut rent).cast()) })?;
    Ok(rent)
}

/// Hash of the newest entry of the SlotHashes sysvar: known only once its slot is over.
#[cfg(target_os = "solana")]
pub fn newest_slot_hash() -> Res<[u8; 32]> {
    let mut hash = [0u8; 32];
    // a u64 count, then (slot u64, hash 32) with the newest first
    check(unsafe { raw::sol_get_sysvar(crate::ids::SLOT_HASHES.as_ptr(), hash.as_mut_ptr(), 16, 32) })?;
    Ok(hash)
}

#[cfg(target_os = "solana")]
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut out = [0u8; 32];
    unsafe { raw::sol_sha256(parts.as_ptr().cast(), parts.len() as u64, out.as_mut_ptr()) };
    out
}

/// Writes the bytes into the transaction's log, in base64 behind "Program data: ".
#[cfg(target_os = "solana")]
pub fn log_data(data: &[u8]) {
    let slices = [data];
    unsafe { raw::sol_log_data(slices.as_ptr().cast(), slices.len() as u64) };
}

#[cfg(target_os = "solana")]
pub fn find_pda(seeds: &[&[u8]], program: &Key) -> Res<(Key, u8)> {
    let (mut key, mut bump) = ([0u8; 32], 0u8);
    check(unsafe {
        raw::sol_try_find_program_address(
            seeds.as_ptr().cast(),
            seeds.len() as u64,
            program.as_ptr(),
            key.as_mut_ptr(),
            &mut bump,
        )
    })?;
    Ok((key, bump))
}

/// The address of seeds with a bump. WrongPda when they give none, as another account's bump may.
#[cfg(target_os = "solana")]
pub fn create_pda(seeds: &[&[u8]], program: &Key) -> Res<Key> {
    let mut key = [0u8; 32];
    let code = unsafe {
        raw::sol_create_program_address(
            seeds.as_ptr().cast(),
            seeds.len() as u64,
            program.as_ptr(),
            key.as_mut_ptr(),
        )
    };
    if code == 0 {
        Ok(key)
    } else {
        Err(crate::Common::WrongPda.into())
    }
}

#[cfg(not(target_os = "solana"))]
mod host {
    use super::*;
    use crate::Common;

    pub fn clock() -> Res<Clock> {
        Err(Common::WrongProgram.into())
    }
    pub fn rent() -> Res<Rent> {
        Err(Common::WrongProgram.into())
    }
    pub fn newest_slot_hash() -> Res<[u8; 32]> {
        Err(Common::WrongProgram.into())
    }
    pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
        crate::sha256::sha256(&parts.concat())
    }
    std::thread_local! {
        static LOGGED: core::cell::RefCell<Vec<Vec<u8>>> = const { core::cell::RefCell::new(Vec::new()) };
    }
    pub fn log_data(data: &[u8]) {
        LOGGED.with_borrow_mut(|logged| logged.push(data.to_vec()));
    }
    /// What this thread has logged since it was last asked.
    pub fn take_logged() -> Vec<Vec<u8>> {
        LOGGED.take()
    }
    pub fn find_pda(_: &[&[u8]], _: &Key) -> Res<(Key, u8)> {
        Err(Common::WrongPda.into())
    }
    pub fn create_pda(_: &[&[u8]], _: &Key) -> Res<Key> {
        Err(Common::WrongPda.into())
    }
}
#[cfg(not(target_os = "solana"))]
pub use host::*;
