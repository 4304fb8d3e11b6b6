use crate::accounts::run_update::Accounts;
use crate::coordinator::{begin, Owned, SET_FUTURE_EPOCH_RATES, SET_PAUSED, UPDATE, UPDATE_CLIENT_VERSION};
use crate::state::Run;
use psyche_common::{Raw, Res, Text};
use psyche_coordinator_state::{CoordinatorConfig, CoordinatorProgress, Metadata, Model};

/// The largest call: every part of `update`.
const MAX_DATA: usize = 8 + 4 + 360 + 128 + 520 + 16;

#[allow(clippy::too_many_arguments)]
pub fn process(
    a: &Accounts,
    metadata: Option<Raw<Metadata>>,
    config: Option<Raw<CoordinatorConfig>>,
    model: Option<Raw<Model>>,
    progress: Option<Raw<CoordinatorProgress>>,
    epoch_earning_rate_total_shared: Option<u64>,
    epoch_slashing_rate_per_client: Option<u64>,
    paused: Option<bool>,
    client_version: Option<Text>,
) -> Res {
    let run = Run::load(&a.run, a.program)?;
    run.check_authority(&a.authority)?;
    run.check_coordinator(&a.coordinator_instance, &a.coordinator_account)?;
    let (number, bump) = (run.index().to_le_bytes(), [run.bump()]);
    let seeds = run.seeds(&number, &bump);
    let coordinator = Owned {
        run: &a.run,
        instance: &a.coordinator_instance,
        coordinator_account: &a.coordinator_account,
        program: &a.coordinator_program,
        seeds: &seeds,
    };
    let mut buffer = [0u8; MAX_DATA];
    if metadata.is_some() || config.is_some() || model.is_some() || progress.is_some() {
        let mut writer = begin(&mut buffer, &UPDATE)?;
        writer.put_option(metadata.map(|x| x.bytes))?;
        writer.put_option(config.map(|x| x.bytes))?;
        writer.put_option(model.map(|x| x.bytes))?;
        writer.put_option(progress.map(|x| x.bytes))?;
        let len = writer.len();
        coordinator.call(&buffer[..len])?;
    }
    if epoch_earning_rate_total_shared.is_some() || epoch_slashing_rate_per_client.is_some() {
        let mut writer = begin(&mut buffer, &SET_FUTURE_EPOCH_RATES)?;
        for rate in [epoch_earning_rate_total_shared, epoch_slashing_rate_per_client] {
            writer.put_option(rate.map(u64::to_le_bytes).as_ref().map(|x| &x[..]))?;
        }
        let len = writer.len();
        coordinator.call(&buffer[..len])?;
    }
    if let Some(paused) = paused {
        let mut writer = begin(&mut buffer, &SET_PAUSED)?;
        writer.put_u8(paused as u8)?;
        let len = writer.len();
        coordinator.call(&buffer[..len])?;
    }
    if let Some(version) = client_version {
        let mut writer = begin(&mut buffer, &UPDATE_CLIENT_VERSION)?;
        writer.put_text(version.0)?;
        let len = writer.len();
        coordinator.call(&buffer[..len])?;
    }
    Ok(())
}
