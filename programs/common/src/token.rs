//! Tokens of the SPL Token program and of Token-2022: reading them, and moving them without surprises.
//!
//! A mint says which program its tokens belong to: the one that owns it. `transfer` checks everything about
//! mint and token accounts but who owns the accounts, which is the caller's rule.
use crate::invoke::{invoke, Info, Meta};
use crate::token_extensions::{check_extensions, Switches, BASE_LEN, IS_ACCOUNT, IS_MINT};
use crate::{ids, sys, Account, Common, Key, Res};

const CLOSE_ACCOUNT: u8 = 9;
const TRANSFER_CHECKED: u8 = 12;
const MINT_LEN: usize = 82;
const FROZEN: u8 = 2;

/// A mint whose tokens behave: whoever is sent a number of base units gets and keeps that number.
pub struct Mint {
    /// The SPL Token program or Token-2022.
    pub program: &'static Key,
    pub supply: u64,
    pub decimals: u8,
}

/// A token account's fields that we look at.
pub struct TokenAccount {
    pub program: &'static Key,
    pub mint: &'static Key,
    pub owner: &'static Key,
    pub amount: u64,
    /// Somebody but the owner may spend from it.
    pub has_delegate: bool,
    pub switches: Switches,
}

/// Reads a mint. Refused are what is no mint, and by name each extension that could change what a balance
/// is worth or take it away (see token_extensions.rs).
pub fn read_mint(account: &Account) -> Res<Mint> {
    let program = check_token_program(account.owner())?;
    let data = account.data();
    if data.len() != MINT_LEN {
        check_extended(program, data, IS_MINT)?;
    }
    if data[45] != 1 {
        return Err(Common::WrongAccount.into());
    }
    Ok(Mint { program, supply: read_u64(data, 36), decimals: data[44] })
}

/// Reads a token account. Refused are what is none, a frozen one, and extensions by name as with a mint.
pub fn read(account: &Account) -> Res<TokenAccount> {
    let program = check_token_program(account.owner())?;
    let data = account.data();
    let mut switches = Switches::default();
    if data.len() != BASE_LEN {
        switches = check_extended(program, data, IS_ACCOUNT)?;
    }
    match data[108] {
        0 => return Err(Common::WrongAccount.into()),
        FROZEN => return Err(Common::TokenAccountFrozen.into()),
        _ => {}
    }
    let key = |at: usize| -> &'static Key { unsafe { &*data.as_ptr().add(at).cast() } };
    Ok(TokenAccount {
        program,
        mint: key(0),
        owner: key(32),
        amount: read_u64(data, 64),
        has_delegate: data[72..76] != [0; 4],
        switches,
    })
}

/// Checks that `account` holds tokens of `mint` for `owner`, and that nobody else may spend them.
pub fn check_holds(account: &Account, owner: &Key, mint: &Key) -> Res<TokenAccount> {
    let held = read(account)?;
    if held.owner == owner && held.mint == mint && !held.has_delegate {
        Ok(held)
    } else {
        Err(Common::WrongAccount.into())
    }
}

/// Checks that `account` is the associated token account of `owner`, and holds as `check_holds` says.
/// A vault is checked with this, so that there is only one for an owner and mint.
pub fn check_associated(account: &Account, owner: &Key, mint: &Key) -> Res<TokenAccount> {
    let held = check_holds(account, owner, mint)?;
    let (address, _) = sys::find_pda(&[owner, held.program, mint], &ids::ASSOCIATED_TOKEN)?;
    account.check_key(&address)?;
    Ok(held)
}

/// The accounts of a transfer; `authority` owns `from` and signs, as a PDA by its seeds.
pub struct Transfer<'a> {
    pub from: &'a Account,
    pub mint: &'a Account,
    pub to: &'a Account,
    pub authority: &'a Account,
    pub token_program: &'a Account,
}

impl Transfer<'_> {
    /// Moves `amount` base units; `seeds` (with the bump) when the authority is a PDA of ours, else empty.
    pub fn send(&self, amount: u64, seeds: &[&[u8]]) -> Res {
        let mint = read_mint(self.mint)?;
        self.token_program.check_program(mint.program)?;
        let (from, to) = (read(self.from)?, read(self.to)?);
        let is_of_mint = |held: &TokenAccount| held.mint == self.mint.key() && held.program == mint.program;
        if !is_of_mint(&from) || !is_of_mint(&to) || self.from.key() == self.to.key() {
            return Err(Common::WrongAccount.into());
        }
        if to.switches.memo_required {
            return Err(Common::TokenAccountMemoRequired.into());
        }
        if from.switches.cpi_guard {
            return Err(Common::TokenAccountCpiGuard.into());
        }
        let mut data = [TRANSFER_CHECKED; 10];
        data[1..9].copy_from_slice(&amount.to_le_bytes());
        data[9] = mint.decimals;
        let metas = [
            Meta::new(self.from, false, true),
            Meta::new(self.mint, false, false),
            Meta::new(self.to, false, true),
            Meta::new(self.authority, true, false),
        ];
        let infos = [
            Info::of(self.from),
            Info::of(self.mint),
            Info::of(self.to),
            Info::of(self.authority),
            Info::of(self.token_program),
        ];
        invoke(self.token_program, &metas, &infos, &data, seeds)
    }
}

/// Creates the associated token account of `owner` for `mint`, or leaves it as it is. The mint is checked as
/// `read_mint` says, the token program to be the mint's.
pub fn create_associated(
    payer: &Account,
    account: &Account,
    owner: &Account,
    mint: &Account,
    system: &Account,
    token: &Account,
    associated: &Account,
) -> Res {
    associated.check_program(&ids::ASSOCIATED_TOKEN)?;
    token.check_program(read_mint(mint)?.program)?;
    const CREATE_IDEMPOTENT: [u8; 1] = [1];
    let metas = [
        Meta::new(payer, true, true),
        Meta::new(account, false, true),
        Meta::new(owner, false, false),
        Meta::new(mint, false, false),
        Meta::new(system, false, false),
        Meta::new(token, false, false),
    ];
    let infos = [
        Info::of(payer),
        Info::of(account),
        Info::of(owner),
        Info::of(mint),
        Info::of(system),
        Info::of(token),
        Info::of(associated),
    ];
    invoke(associated, &metas, &infos, &CREATE_IDEMPOTENT, &[])
}

/// Closes an empty token account of `owner`, whose rent goes to `spill`.
pub fn close(account: &Account, spill: &Account, owner: &Account, token: &Account, seeds: &[&[u8]]) -> Res {
    token.check_program(check_token_program(account.owner())?)?;
    let metas =
        [Meta::new(account, false, true), Meta::new(spill, false, true), Meta::new(owner, true, false)];
    let infos = [Info::of(account), Info::of(spill), Info::of(owner), Info::of(token)];
    invoke(token, &metas, &infos, &[CLOSE_ACCOUNT], seeds)
}

fn check_token_program(owner: &'static Key) -> Res<&'static Key> {
    if *owner == ids::TOKEN || *owner == ids::TOKEN_2022 {
        Ok(owner)
    } else {
        Err(Common::WrongOwner.into())
    }
}

fn check_extended(program: &Key, data: &[u8], kind: u8) -> Res<Switches> {
    if *program == ids::TOKEN {
        return Err(Common::WrongAccount.into());
    }
    check_extensions(data, kind)
}

fn read_u64(data: &[u8], at: usize) -> u64 {
    let mut bytes = [0u8; 8];
    bytes.copy_from_slice(&data[at..at + 8]);
    u64::from_le_bytes(bytes)
}
