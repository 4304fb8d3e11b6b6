//! Errors are numbers on chain. Each program has its own from 6000; these, from 6100, are shared.

/// What an instruction returns to the runtime: a custom error code, or an error of a called program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u64);

pub type Res<T = ()> = Result<T, Failure>;

/// Declares an error enum whose numbers start at `$base`. `programs/build/idl.py` reads the same text.
#[macro_export]
macro_rules! errors {
    ($(#[$doc:meta])* $name:ident from $base:literal { $($variant:ident = $message:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $(#[doc = $message] $variant,)* }
        impl From<$name> for $crate::Failure {
            fn from(error: $name) -> $crate::Failure {
                $crate::Failure($base + error as u64)
            }
        }
    };
}

errors! {
    /// Refusals that any program can give.
    Common from 6100 {
        InvalidInstructionData = "the instruction's data is not what this program takes",
        MissingAccount = "an account is missing",
        WrongOwner = "an account is owned by another program than expected",
        NotSigner = "an account that must sign has not signed",
        NotWritable = "an account that must be writable is not",
        WrongPda = "an account is not at the address its seeds give",
        WrongDiscriminator = "an account is of another kind than expected",
        WrongVersion = "an account is of a version this program does not know",
        WrongAuthority = "the signer is not the authority",
        ArithmeticOverflow = "a number left its range",
        AlreadyInitialized = "the account is in use already",
        WrongProgram = "a program account is not the expected program",
        WrongAccount = "an account is not the expected one",
        MintTransferFee = "the mint takes a fee out of every transfer: less would arrive than is owed",
        MintTransferHook = "the mint runs a program of its authority's choice in every transfer",
        MintPermanentDelegate = "the mint's permanent delegate can take tokens out of every account",
        MintNonTransferable = "tokens of the mint cannot be transferred",
        MintDefaultAccountState = "new token accounts of the mint can start frozen",
        MintConfidentialTransfer = "the mint can hide amounts, which cannot be paid from a vault",
        MintInterestBearing = "the mint shows amounts with interest, which are not the amounts that are paid",
        MintScaledUiAmount = "the mint shows amounts times a factor, which are not the amounts that are paid",
        MintPausable = "the mint's authority can stop every transfer",
        MintCloseAuthority = "the mint can be closed while nobody holds tokens, and made anew with other rules",
        TokenExtensionUnknown = "the mint or token account has an extension that this program does not know",
        TokenAccountFrozen = "the token account is frozen by the mint's freeze authority",
        TokenAccountMemoRequired = "the token account takes no transfer without a memo",
        TokenAccountCpiGuard = "the token account lets no program transfer out of it",
    }
}
