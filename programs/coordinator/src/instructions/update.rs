use crate::accounts::update::Accounts;
use crate::error::Error;
use crate::rules::check::{check_config, check_model, check_progress, check_together};
use crate::rules::handover::forget_models;
use crate::state::{run_state, CoordinatorConfig, CoordinatorProgress, Metadata, Model};
use psyche_common::decode::replace;
use psyche_common::{Raw, Res};

pub fn process(
    a: &Accounts,
    metadata: Option<Raw<Metadata>>,
    config: Option<Raw<CoordinatorConfig>>,
    model: Option<Raw<Model>>,
    progress: Option<Raw<CoordinatorProgress>>,
) -> Res {
    let c = super::load_as_owner(&a.authority, &a.instance, &a.coordinator_account, a.program)?;
    if c.run_state == run_state::FINISHED {
        return Err(Error::UpdateConfigFinished.into());
    }
    let mut changed = false;
    if let Some(metadata) = metadata {
        changed |= replace(&mut c.metadata, metadata.bytes);
    }
    if config.is_some() || model.is_some() || progress.is_some() {
        c.check_halted()?;
    }
    if let Some(config) = config {
        changed |= replace(&mut c.config, config.bytes);
        check_config(&c.config)?;
    }
    if let Some(model) = model {
        changed |= replace(&mut c.model, model.bytes);
        check_model(&c.model, true)?;
        changed |= forget_models(c);
    }
    if let Some(progress) = progress {
        changed |= replace(&mut c.progress, progress.bytes);
        check_progress(&c.progress)?;
    }
    // the two halves are set one after the other; once both are there they must fit together
    if c.config.epoch_time != 0 && c.model.max_seq_len != 0 {
        check_together(&c.config, &c.model)?;
    }
    c.bump_nonce_if(changed);
    Ok(())
}
