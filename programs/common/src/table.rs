//! The instruction table of a program: names, accounts and arguments, written once.

/// Declares the instructions of a program and its entry point.
///
/// An account is `name: flags`, flags being `r` (read), `w` (writable), `s` (signs), `sw`; both are checked
/// before the instruction's own `process` runs. `o` is read and may be left out: behind the others, or with
/// the program's own address in its place, as Anchor's clients do. Arguments are Borsh. The client's IDL is generated from the
/// same text by `programs/build/idl.py`.
#[macro_export]
macro_rules! instructions {
    ($(
        $(#[doc = $doc:literal])*
        $name:ident [ $($account:ident: $flags:ident),* $(,)? ] ( $($arg:ident: $ty:ty),* $(,)? );
    )*) => {
        /// Accounts of each instruction by name.
        pub mod accounts { $(
            pub mod $name {
                $(#[doc = $doc])*
                pub struct Accounts {
                    $(pub $account: $crate::instructions!(@type $flags),)*
                    pub program: &'static $crate::Key,
                }
            }
        )* }

        #[allow(dead_code)]
        fn dispatch(input: &$crate::Input) -> $crate::Res {
            let Some((tag, rest)) = input.data.split_first_chunk::<8>() else {
                return Err($crate::Common::InvalidInstructionData.into());
            };
            $(
                const _: () = assert!(<[&str]>::len(&[$(stringify!($account)),*]) <= $crate::account::MAX_ACCOUNTS);
                if *tag == const { $crate::sha256::discriminator("global", stringify!($name)) } {
                    return $crate::instructions!(@call input, rest, $name, [$($account: $flags),*], ($($arg: $ty),*));
                }
            )*
            Err($crate::Common::InvalidInstructionData.into())
        }

        #[cfg(target_os = "solana")]
        $crate::entrypoint!();
    };
    (@call $input:ident, $rest:ident, $name:ident, [$($account:ident: $flags:ident),*], ($($arg:ident: $ty:ty),*)) => {{
        #[inline(never)]
        fn call(input: &$crate::Input, rest: &'static [u8]) -> $crate::Res {
            #[allow(unused_mut)]
            let mut next = 0usize;
            $(
                let $account = $crate::instructions!(@account input, next, $flags);
                next += 1;
            )*
            let _ = next;
            #[allow(unused_mut)]
            let mut reader = $crate::Reader::new(rest);
            $(let $arg = <$ty as $crate::Decode>::decode(&mut reader)?;)*
            reader.finish()?;
            instructions::$name::process(
                &accounts::$name::Accounts { $($account,)* program: input.program },
                $($arg),*
            )
        }
        call($input, $rest)
    }};
    (@type o) => { Option<$crate::Account> };
    (@type $flags:ident) => { $crate::Account };
    (@account $input:ident, $next:ident, r) => { $input.account($next, false, false)? };
    (@account $input:ident, $next:ident, w) => { $input.account($next, false, true)? };
    (@account $input:ident, $next:ident, s) => { $input.account($next, true, false)? };
    (@account $input:ident, $next:ident, sw) => { $input.account($next, true, true)? };
    (@account $input:ident, $next:ident, o) => { $input.optional($next) };
}

/// Entry point and panic handler.
#[macro_export]
macro_rules! entrypoint {
    () => {
        /// # Safety
        /// Called by the loader with its input buffer.
        #[no_mangle]
        pub unsafe extern "C" fn entrypoint(input: *mut u8) -> u64 {
            let input = unsafe { $crate::Input::parse(input) };
            match dispatch(&input) {
                Ok(()) => 0,
                Err($crate::Failure(code)) => code,
            }
        }

        #[panic_handler]
        fn panic(info: &core::panic::PanicInfo) -> ! {
            $crate::sys::panic(info)
        }
    };
}
