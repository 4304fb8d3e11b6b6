use crate::accounts::run_create::Accounts;
use crate::coordinator::{begin, INIT};
use crate::error::Error;
use crate::state::{Run, RUN_SEED};
use psyche_common::decode::Writer;
use psyche_common::invoke::{invoke, Info, Meta};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::{ids, token, Key, Res, Text};

pub fn process(
    a: &Accounts,
    index: u64,
    run_id: Text,
    client_version: Text,
    main_authority: &'static Key,
    join_authority: &'static Key,
) -> Res {
    if run_id.0.is_empty() || run_id.0.len() > 32 {
        return Err(Error::RunIdInvalidLength.into());
    }
    if client_version.0.len() > 96 {
        return Err(Error::InvalidParameter.into());
    }
    let number = index.to_le_bytes();
    let bump = check_pda(&a.run, &[RUN_SEED, &number], a.program)?;
    let seeds: [&[u8]; 3] = [RUN_SEED, &number, &[bump]];
    create_pda_account(&a.payer, &a.run, &a.system_program, a.program, Run::SIZE, &seeds)?;
    write_run(a, bump, index, main_authority, join_authority)?;
    token::create_associated(
        &a.payer,
        &a.run_collateral,
        &a.run,
        &a.collateral_mint,
        &a.system_program,
        &a.token_program,
        &a.associated_token_program,
    )?;
    init_coordinator(a, run_id, client_version, join_authority)
}

fn write_run(a: &Accounts, bump: u8, index: u64, main_authority: &Key, join_authority: &Key) -> Res {
    let mut writer = Writer::new(a.run.data_mut());
    writer.put(&Run::DISCRIMINATOR)?;
    writer.put_u8(bump)?;
    writer.put_u64(index)?;
    writer.put_key(main_authority)?;
    writer.put_key(join_authority)?;
    writer.put_key(a.coordinator_account.key())?;
    writer.put_key(a.coordinator_instance.key())?;
    writer.put_key(a.collateral_mint.key())
}

fn init_coordinator(a: &Accounts, run_id: Text, client_version: Text, join_authority: &Key) -> Res {
    a.coordinator_program.check_program(&ids::COORDINATOR)?;
    let mut buffer = [0u8; 8 + 64 + 4 + 32 + 4 + 96];
    let mut writer = begin(&mut buffer, &INIT)?;
    writer.put_key(a.run.key())?;
    writer.put_key(join_authority)?;
    writer.put_text(run_id.0)?;
    writer.put_text(client_version.0)?;
    let len = writer.len();
    let metas = [
        Meta::new(&a.payer, true, true),
        Meta::new(&a.coordinator_instance, false, true),
        Meta::new(&a.coordinator_account, true, true),
        Meta::new(&a.system_program, false, false),
    ];
    let infos = [
        Info::of(&a.payer),
        Info::of(&a.coordinator_instance),
        Info::of(&a.coordinator_account),
        Info::of(&a.system_program),
        Info::of(&a.coordinator_program),
    ];
    invoke(&a.coordinator_program, &metas, &infos, &buffer[..len], &[])
}
