use crate::accounts::leave_run::Accounts;
use crate::state::client_state;
use psyche_common::Res;

pub fn process(a: &Accounts) -> Res {
    let (c, entry) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    let mut changed = c.entries[entry].active != 0;
    c.entries[entry].active = 0;
    if c.is_in_epoch() {
        if let Some(index) = c.find_epoch_client(entry) {
            if super::is_healthy_client(c, index, entry) {
                let height = c.epoch_state.current().height;
                let client = &mut c.epoch_state.clients_mut()[index];
                client.state = client_state::WITHDRAWN;
                client.exited_height = height;
                changed = true;
            }
        }
    }
    super::finish(&a.coordinator_account, c, changed)
}
