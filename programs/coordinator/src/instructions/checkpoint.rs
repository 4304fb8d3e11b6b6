use crate::accounts::checkpoint::Accounts;
use crate::error::Error;
use crate::state::checkpoint::{CONFIG, GCS, HUB, LOCAL, P2P, P2P_GCS};
use psyche_common::decode::replace;
use psyche_common::Res;

pub fn process(a: &Accounts, kind: u8, repo: &'static [u8; 128], revision: &'static [u8; 64]) -> Res {
    let (c, entry) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    let index = c.find_epoch_client(entry).ok_or(Error::ClientNotInEpoch)?;
    if !super::is_healthy_client(c, index, entry) {
        return Err(Error::ClientNotInEpoch.into());
    }
    if !matches!(kind, HUB | GCS | LOCAL) || repo[0] == 0 {
        return Err(Error::InvalidCheckpoint.into());
    }
    let model = &mut c.model;
    let current = match model.checkpoint_kind {
        P2P | P2P_GCS if kind == GCS => P2P_GCS,
        P2P | P2P_GCS => P2P,
        HUB | GCS | LOCAL | CONFIG => kind,
        _ => return Err(Error::InvalidCheckpoint.into()),
    };
    let mut changed = replace(&mut model.checkpoint_kind, &[current]);
    changed |= replace(&mut model.checkpoint_origin, &[kind]);
    changed |= replace(&mut model.checkpoint_repo, repo);
    changed |= replace(&mut model.checkpoint_revision, revision);
    super::finish(&a.coordinator_account, c, changed)
}
