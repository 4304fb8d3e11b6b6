use crate::accounts::participant_create::Accounts;
use crate::state::{Participant, Run, PARTICIPANT_SEED};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::Res;

pub fn process(a: &Accounts) -> Res {
    Run::load(&a.run, a.program)?;
    let (run, user) = (a.run.key(), a.user.key());
    let bump = check_pda(&a.participant, &[PARTICIPANT_SEED, run, user], a.program)?;
    create_pda_account(
        &a.payer,
        &a.participant,
        &a.system_program,
        a.program,
        Participant::SIZE,
        &[PARTICIPANT_SEED, run, user, &[bump]],
    )?;
    let data = a.participant.data_mut();
    data[..8].copy_from_slice(&Participant::DISCRIMINATOR);
    data[8] = bump;
    Participant::set_version(&a.participant);
    Ok(())
}
