use crate::accounts::participant_migrate::Accounts;
use crate::coordinator::Owned;
use crate::error::Error;
use crate::points;
use crate::state::{Participant, Run};
use psyche_common::system::{minimum_balance, transfer};
use psyche_common::Res;

/// The older layout counted what was claimed; now the coordinator's entry does. Without this step the same
/// points could be claimed a second time.
pub fn process(a: &Accounts) -> Res {
    let run = Run::load(&a.run, a.program)?;
    let old = Participant::load_old(&a.participant, a.program)?.ok_or(Error::NothingToMigrate)?;
    old.check_address(&a.participant, a.run.key(), a.user.key(), a.program)?;
    run.check_coordinator(&a.coordinator_instance, &a.coordinator_account)?;

    let claimable = points::get_claimable(points::load(&a.coordinator_account)?, a.user.key());
    // less than was claimed is left where points were slashed after they had been paid
    let claimed = old.claimed_points().min(claimable);
    if claimed > 0 {
        let (number, bump) = (run.index().to_le_bytes(), [run.bump()]);
        let coordinator = Owned {
            run: &a.run,
            instance: &a.coordinator_instance,
            coordinator_account: &a.coordinator_account,
            program: &a.coordinator_program,
            seeds: &run.seeds(&number, &bump),
        };
        coordinator.record_claim(a.user.key(), claimed)?;
    }
    let missing = minimum_balance(Participant::SIZE)?.saturating_sub(a.participant.lamports());
    transfer(&a.payer, &a.participant, &a.system_program, missing)?;
    a.participant.resize(a.participant.len(), Participant::SIZE)?;
    Participant::set_version(&a.participant);
    Ok(())
}
