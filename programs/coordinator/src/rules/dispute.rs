//! Disputes: a verifier accuses a trainer, tie-breakers of the next round that starts decide.
use super::committee::to_committee_positions;
use crate::error::Error;
use crate::state::{
    client_state, dispute_state, get_bit, CoordinatorAccount, Dispute, EpochState, Round, MAX_TIE_BREAKER_SEATS,
    NUM_STORED_ROUNDS,
};
use psyche_common::Res;

/// A seat more for each party: neither judges, and both may have been drawn.
const NUM_PARTIES: u16 = 2;
const GUILTY_BIT: u16 = 1 << 15;
pub const REASONS: core::ops::RangeInclusive<u8> = 1..=8;
/// Reasons that say "no usable answer came": nobody can show afterwards whose fault that was.
const REFUSALS: core::ops::RangeInclusive<u8> = 2..=4;
/// Rounds that a voice with the majority is credited: with a third of the judges too late, a look pays on average.
const JUDGES_PAY: u32 = 2;
/// Rounds that a voice against the majority loses.
const LOSS: u32 = 3;

/// Stores an accusation.
pub fn open(c: &mut CoordinatorAccount, accusation: Dispute) -> Res<usize> {
    let trainer = c.epoch_state.clients()[accusation.trainer as usize];
    let is_known = c.disputes.iter().any(|d| {
        let same_result = d.trainer == accusation.trainer && d.height == accusation.height;
        // votes name the evidence: with one piece for two disputes, those about one would count for the other
        d.state != dispute_state::FREE && (same_result || d.evidence_hash == accusation.evidence_hash)
    });
    if is_known || trainer.state == client_state::EJECTED {
        return Err(Error::DuplicateVerdict.into());
    }
    // the oldest goes, so that what was judged a moment ago cannot be brought up again
    let settled = (0..c.disputes.len()).filter(|slot| !is_open(&c.disputes[*slot]));
    let slot = settled.min_by_key(|slot| c.disputes[*slot].height).ok_or(Error::DisputesFull)?;
    c.disputes[slot] = accusation;
    Ok(slot)
}

pub fn is_open(dispute: &Dispute) -> bool {
    dispute.state == dispute_state::OPEN
}

/// Whether an open dispute waits for the round that is to judge it.
pub fn has_unjudged(c: &CoordinatorAccount) -> bool {
    c.disputes.iter().any(|d| is_open(d) && d.judge_height == 0)
}

/// Whether an open dispute is being judged.
pub fn has_judged(c: &CoordinatorAccount) -> bool {
    c.disputes.iter().any(|d| is_open(d) && d.judge_height != 0)
}

/// Whether the client with this entry is a party of an open dispute.
pub fn is_party(c: &CoordinatorAccount, entry: usize) -> bool {
    let names = |index: u16| {
        let client = c.epoch_state.clients().get(index as usize);
        client.is_some_and(|client| client.entry as usize == entry)
    };
    c.disputes.iter().any(|d| is_open(d) && (names(d.accuser) || names(d.trainer)))
}

/// What a starting round, whose clients are set, does to disputes; returns its tie-breakers' seats.
///
/// Those without judges get them here, unless everybody is a party; those whose round leaves the ring are over.
pub fn seat_judges(c: &mut CoordinatorAccount) -> u16 {
    let round = c.epoch_state.current();
    let (height, healthy, num) = (round.height, round.healthy, round.clients_len);
    let wanted = c.config.num_tie_breakers as u16;
    let mut seats = 0;
    for d in c.disputes.iter_mut().filter(|d| is_open(d)) {
        if d.judge_height == 0 {
            let is_here = |index: u16| get_bit(&healthy, index as usize) as u16;
            d.judge_height = height;
            d.tie_breakers = u16::min(wanted, num - is_here(d.accuser) - is_here(d.trainer)) as u8;
            if d.tie_breakers == 0 {
                d.state = dispute_state::UNDECIDED;
            } else {
                seats = u16::min(wanted + NUM_PARTIES, num);
            }
        } else if d.judge_height + NUM_STORED_ROUNDS as u32 <= height {
            leave_undecided(d, &mut c.epoch_state);
        }
    }
    seats
}

/// The end of an epoch: what is open stays undecided.
pub fn expire_all(c: &mut CoordinatorAccount) {
    for d in c.disputes.iter_mut().filter(|d| is_open(d)) {
        leave_undecided(d, &mut c.epoch_state);
    }
}

/// Nobody is convicted; but what more than half of the judges say is worth their look all the same.
#[inline(never)]
fn leave_undecided(d: &mut Dispute, epoch: &mut EpochState) {
    d.state = dispute_state::UNDECIDED;
    let (num, num_guilty) = (d.tie_breakers as u16, count_votes(d, true));
    let num_not_guilty = d.num_votes as u16 - num_guilty;
    if 2 * u16::max(num_guilty, num_not_guilty) > num {
        pay_voices(d, epoch, num_guilty > num_not_guilty);
    }
}

/// The stored round that judges a dispute.
pub fn find_judge_round<'a>(c: &'a CoordinatorAccount, d: &Dispute) -> Option<&'a Round> {
    let behind = c.epoch_state.current().height.checked_sub(d.judge_height)? as usize;
    if d.judge_height == 0 || behind >= NUM_STORED_ROUNDS {
        return None;
    }
    c.epoch_state.earlier(behind)
}

/// Whether epoch client `index` judges: the committee's first `tie_breakers` that are no parties do. So they are
/// exactly as many as the majority is counted of, however the parties were drawn.
pub fn is_tie_breaker(d: &Dispute, round: &Round, index: usize) -> bool {
    let parties = [d.accuser as usize, d.trainer as usize];
    if parties.contains(&index) || !get_bit(&round.healthy, index) {
        return false;
    }
    let mut ranks = [round.rank(index), 0, 0];
    let mut num = 1;
    for party in parties.into_iter().filter(|party| get_bit(&round.healthy, *party)) {
        ranks[num] = round.rank(party);
        num += 1;
    }
    to_committee_positions(&mut ranks[..num], round);
    let before = ranks[1..num].iter().filter(|position| **position < ranks[0]).count() as u16;
    ranks[0] - before < d.tie_breakers as u16
}

/// Votes that decide: two thirds of all tie-breakers, rounded up. Three quarters where no evidence can show that the
/// trainer is guilty, since it is said not to have answered.
fn needed(d: &Dispute, is_guilty: bool) -> u16 {
    let num = d.tie_breakers as u16;
    if is_guilty && REFUSALS.contains(&d.reason) {
        (num * 3).div_ceil(4)
    } else {
        (num * 2).div_ceil(3)
    }
}

/// A tie-breaker's vote. The side that has as many as it needs wins at once.
pub fn vote(c: &mut CoordinatorAccount, slot: usize, index: u16, is_guilty: bool) -> Res {
    let d = &mut c.disputes[slot];
    let number = d.num_votes as usize;
    if d.votes[..number].iter().any(|vote| vote & !GUILTY_BIT == index) {
        return Err(Error::DuplicateVote.into());
    }
    if number >= MAX_TIE_BREAKER_SEATS {
        return Err(Error::VotingOver.into());
    }
    d.votes[number] = index | if is_guilty { GUILTY_BIT } else { 0 };
    d.num_votes += 1;
    if count_votes(d, is_guilty) >= needed(d, is_guilty) {
        decide(c, slot, is_guilty);
    }
    Ok(())
}

pub fn count_votes(d: &Dispute, is_guilty: bool) -> u16 {
    let votes = d.votes[..d.num_votes as usize].iter();
    votes.filter(|vote| (**vote & GUILTY_BIT != 0) == is_guilty).count() as u16
}

/// What the loser of a decided dispute is slashed by.
pub fn slashed_points(c: &CoordinatorAccount, d: &Dispute) -> u64 {
    match d.state {
        dispute_state::GUILTY => c.current_rates.slashing_rate_per_client,
        dispute_state::NOT_GUILTY if !REFUSALS.contains(&d.reason) => {
            c.current_rates.slashing_rate_per_client
        }
        _ => 0,
    }
}

fn decide(c: &mut CoordinatorAccount, slot: usize, is_guilty: bool) {
    let state = if is_guilty { dispute_state::GUILTY } else { dispute_state::NOT_GUILTY };
    c.disputes[slot].state = state;
    let d = c.disputes[slot];
    if is_guilty {
        convict(c, &d, d.trainer);
    } else if REFUSALS.contains(&d.reason) {
        count_refusal(c, d.accuser);
        count_refusal(c, d.trainer);
    } else {
        convict(c, &d, d.accuser);
    }
    pay_voices(&d, &mut c.epoch_state, is_guilty);
}

/// Credits the tie-breakers who said what most say, and takes from those who said the contrary, the accuser among
/// them: else it would pay to say something without a look.
fn pay_voices(d: &Dispute, epoch: &mut EpochState, is_guilty: bool) {
    for vote in &d.votes[..d.num_votes as usize] {
        let rounds = &mut epoch.clients[(vote & !GUILTY_BIT) as usize].attested_rounds;
        if (vote & GUILTY_BIT != 0) == is_guilty {
            *rounds = rounds.saturating_add(JUDGES_PAY);
        } else {
            *rounds = rounds.saturating_sub(LOSS);
        }
    }
    if !is_guilty {
        let rounds = &mut epoch.clients[d.accuser as usize].attested_rounds;
        *rounds = rounds.saturating_sub(LOSS);
    }
}

/// Out of the epoch, whose rounds pay it nothing, and slashed; what exceeds its points is a debt. Whoever has joined
/// the next epoch already has to join again, with what its bond is worth then.
fn convict(c: &mut CoordinatorAccount, d: &Dispute, index: u16) {
    exit(c, index, client_state::EJECTED);
    let points = slashed_points(c, d);
    let client = &mut c.epoch_state.clients[index as usize];
    client.state = client_state::EJECTED;
    let entry = &mut c.entries[client.entry as usize];
    entry.slashed = entry.slashed.saturating_add(points);
    entry.active = 0;
}

/// Answered after all: a line can fail, so it costs nobody points, but not often.
fn count_refusal(c: &mut CoordinatorAccount, index: u16) {
    let client = &mut c.epoch_state.clients[index as usize];
    client.refusals = client.refusals.saturating_add(1);
    if client.refusals > c.config.max_refusals {
        exit(c, index, client_state::DROPPED);
    }
}

/// A client that is Healthy leaves at the current height.
fn exit(c: &mut CoordinatorAccount, index: u16, state: u8) {
    let height = c.epoch_state.current().height;
    let client = &mut c.epoch_state.clients[index as usize];
    if client.state == client_state::HEALTHY {
        client.state = state;
        client.exited_height = height;
    }
}
