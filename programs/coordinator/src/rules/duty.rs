//! Which trainer a verifier has to look at.
use super::committee::{to_committee_positions, to_drawn_ranks, verifier_positions};
use crate::state::{get_bit, CoordinatorAccount, MAX_CLIENTS};

/// The epoch client whose result of the round before epoch client `verifier` looks at in the round `behind`
/// (0 to 2) rounds before the current one; None when it has nothing to look at.
///
/// Verifier number j takes position j of a shuffle of all who were Healthy then, the next one if that is itself.
pub fn find_duty(c: &CoordinatorAccount, behind: usize, verifier: usize) -> Option<usize> {
    let (round, judged) = (c.epoch_state.earlier(behind)?, c.epoch_state.earlier(behind + 1)?);
    let num = judged.clients_len;
    if judged.apply_only != 0 || num == 0 || verifier >= MAX_CLIENTS || !get_bit(&round.healthy, verifier) {
        return None;
    }
    let mut position = [round.rank(verifier)];
    to_committee_positions(&mut position, round);
    let (start, end) = verifier_positions(c.config.verification_percent, round);
    if !(start..end).contains(&position[0]) {
        return None;
    }
    let number = position[0] - start;
    let mut drawn = [number % num, (number + 1) % num];
    to_drawn_ranks(&mut drawn, num, round);
    let found = judged.client_at(drawn[0])?;
    if found != verifier {
        return Some(found);
    }
    (num > 1).then(|| judged.client_at(drawn[1])).flatten()
}
