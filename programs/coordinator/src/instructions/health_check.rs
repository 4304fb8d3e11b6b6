use crate::accounts::health_check::Accounts;
use crate::error::Error;
use crate::rules::committee::{num_elected, quorum};
use crate::rules::witness::Votes;
use crate::state::{client_state, get_bit, run_state, CoordinatorAccount};
use psyche_common::Res;

pub fn process(a: &Accounts, index: u16) -> Res {
    let (c, _) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    if c.is_halted() {
        return Err(Error::Halted.into());
    }
    if !matches!(c.run_state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        return Err(Error::InvalidRunState.into());
    }
    let index = index as usize;
    if !is_unhealthy(c, index) {
        return Err(Error::InvalidHealthCheck.into());
    }
    let height = c.epoch_state.current().height;
    let client = &mut c.epoch_state.clients_mut()[index];
    client.state = client_state::DROPPED;
    client.exited_height = height;
    super::finish(&a.coordinator_account, c, true)
}

/// A quorum of the previous round's witnesses missed the client two rounds back. That no quorum saw it would not
/// do: a third of the witnesses could drop anybody by leaving it out.
fn is_unhealthy(c: &CoordinatorAccount, index: usize) -> bool {
    let (Some(previous), Some(judged)) = (c.epoch_state.earlier(1), c.epoch_state.earlier(2)) else {
        return false;
    };
    let healthy = c.epoch_state.clients().get(index).is_some_and(|x| x.state == client_state::HEALTHY);
    if !healthy || judged.apply_only != 0 || !get_bit(&judged.healthy, index) {
        return false;
    }
    let needed = quorum(num_elected(c.config.witness_nodes, previous));
    get_bit(&Votes::count(previous).missed(needed), index)
}
