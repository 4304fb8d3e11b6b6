//! `tick`: what the passing of time, and enough witnesses, do to a run.
use super::batch::batch_size;
use super::committee::{elect, num_elected, quorum};
use super::dispute::{expire_all, has_judged, has_unjudged, seat_judges};
use super::handover::{has_nobody_ready, is_shared, note_models, step_back};
use super::points::settle;
use super::witness::{contradicts, is_complete, Votes};
use crate::state::{
    checkpoint, client_state, count, get_bit, run_state, Bitmap, CoordinatorAccount, Dispute, Round,
    MAX_CLIENTS, MAX_DISPUTES, NUM_STORED_ROUNDS,
};

/// The first step an epoch may end at.
const MIN_LAST_STEP: u32 = 4;
/// After the last trained round two more run, in which its results and those before it are applied.
pub const NUM_APPLY_ROUNDS: u32 = 2;

/// Lets time act. True when anything changed.
pub fn tick(c: &mut CoordinatorAccount, now: u64, seed: u64) -> bool {
    match c.run_state {
        run_state::WAITING_FOR_MEMBERS => tick_waiting_for_members(c, now),
        run_state::WARMUP => tick_warmup(c, now, seed),
        run_state::ROUND_TRAIN => tick_round_train(c, now, seed),
        run_state::ROUND_WITNESS => tick_round_witness(c, now, seed),
        run_state::COOLDOWN => tick_cooldown(c, now),
        _ => false,
    }
}

fn change_state(c: &mut CoordinatorAccount, state: u8, now: u64) {
    c.run_state = state;
    c.run_state_start_unix_timestamp = now;
}

/// Two transitions never share a second on the clock's account.
fn is_timeout(c: &CoordinatorAccount, now: u64, duration: u64) -> bool {
    let start = c.run_state_start_unix_timestamp;
    now != start && now >= start.saturating_add(duration)
}

/// Too few steps are left for an epoch: one round to train and two to apply it.
fn is_over(c: &CoordinatorAccount) -> bool {
    c.progress.step.saturating_add(NUM_APPLY_ROUNDS) >= c.config.total_steps
}

fn tick_waiting_for_members(c: &mut CoordinatorAccount, now: u64) -> bool {
    let extra = c.config.waiting_for_members_extra_time as u64;
    if c.num_pending() < c.config.init_min_clients || !is_timeout(c, now, extra) {
        return false;
    }
    start_epoch(c, now);
    change_state(c, run_state::WARMUP, now);
    true
}

fn start_epoch(c: &mut CoordinatorAccount, now: u64) {
    let cold = c.epoch_state.cold_start_epoch;
    let (newest, older) = (c.epoch_state.model_digest, c.epoch_state.older_digests);
    zero(&mut c.epoch_state);
    let epoch = &mut c.epoch_state;
    epoch.cold_start_epoch = cold;
    (epoch.model_digest, epoch.older_digests) = (newest, older);
    epoch.first_round = 1;
    epoch.start_step = c.progress.step;
    epoch.start_timestamp = now;
    let mut num = 0usize;
    for (number, entry) in c.entries[..c.num_entries as usize].iter_mut().enumerate() {
        if entry.active == c.next_active {
            entry.last_epoch = c.progress.epoch as u32;
            epoch.clients[num].entry = number as u16;
            num += 1;
        }
    }
    epoch.num_clients = num as u16;
    c.current_rates = c.future_rates;
    c.disputes = [Dispute::FREE; MAX_DISPUTES];
}

fn tick_warmup(c: &mut CoordinatorAccount, now: u64, seed: u64) -> bool {
    let healthy = c.epoch_state.healthy();
    if count(&healthy) < c.config.min_clients {
        rest(c, now);
        return true;
    }
    let ready = healthy.iter().zip(&c.epoch_state.warmup_ready).all(|(due, seen)| due & seen == *due);
    if !ready && !is_timeout(c, now, c.config.warmup_time) {
        return false;
    }
    if is_shared(c) && has_nobody_ready(c, &healthy) {
        step_back(c);
        rest(c, now);
        return true;
    }
    start_round(c, now, seed);
    true
}

/// Where a run goes between epochs.
fn rest(c: &mut CoordinatorAccount, now: u64) {
    let over = is_over(c);
    change_state(c, if over { run_state::FINISHED } else { run_state::WAITING_FOR_MEMBERS }, now);
}

fn tick_round_train(c: &mut CoordinatorAccount, now: u64, seed: u64) -> bool {
    if has_every_witness(c) {
        if is_round_complete(c) {
            end_round(c, now, seed);
        } else {
            change_state(c, run_state::ROUND_WITNESS, now);
        }
        return true;
    }
    if !is_timeout(c, now, c.config.max_round_train_time) {
        return false;
    }
    change_state(c, run_state::ROUND_WITNESS, now);
    true
}

fn tick_round_witness(c: &mut CoordinatorAccount, now: u64, seed: u64) -> bool {
    let done = has_every_witness(c) && is_round_complete(c);
    if !done && !is_timeout(c, now, c.config.round_witness_time) {
        return false;
    }
    end_round(c, now, seed);
    true
}

/// Every elected witness that is still Healthy has attested.
fn has_every_witness(c: &CoordinatorAccount) -> bool {
    silent_witnesses(c) == [0; MAX_CLIENTS / 64]
}

/// Elected witnesses that could attest and have not.
fn silent_witnesses(c: &CoordinatorAccount) -> Bitmap {
    let round = c.epoch_state.current();
    let (mut silent, witnessed, healthy) = (round.elected, round.witnessed(), c.epoch_state.healthy());
    for (i, word) in silent.iter_mut().enumerate() {
        *word &= healthy[i] & !witnessed[i];
    }
    silent
}

/// The round before, when its results are there to be attested.
fn attestable(c: &CoordinatorAccount) -> Option<&Round> {
    c.epoch_state.earlier(1).filter(|round| round.apply_only == 0)
}

fn is_round_complete(c: &CoordinatorAccount) -> bool {
    let Some(previous) = attestable(c) else { return true };
    let now_healthy = c.epoch_state.healthy();
    let mut expected: Bitmap = previous.healthy;
    for (word, healthy) in expected.iter_mut().zip(now_healthy) {
        *word &= healthy;
    }
    is_complete(c.epoch_state.current(), &expected)
}

fn end_round(c: &mut CoordinatorAccount, now: u64, seed: u64) {
    let needed = quorum(num_elected(c.config.witness_nodes, c.epoch_state.current()));
    judge_witnesses(c, needed);
    c.epoch_state.first_round = 0;
    c.progress.step += 1;
    let num_witnesses = c.epoch_state.current().num_witnesses;
    if num_witnesses == 0 {
        withdraw_all(c);
        return change_state(c, run_state::COOLDOWN, now);
    }
    if c.epoch_state.num_healthy() < c.config.min_clients || num_witnesses < needed {
        return change_state(c, run_state::COOLDOWN, now);
    }
    let step = c.progress.step;
    let epoch_end = c.epoch_state.start_timestamp.saturating_add(c.config.epoch_time);
    let closing = now >= epoch_end
        || c.pending_pause != 0
        || step.saturating_add(NUM_APPLY_ROUNDS) >= c.config.total_steps;
    if c.epoch_state.last_step == 0 && closing {
        c.epoch_state.last_step = step.saturating_add(NUM_APPLY_ROUNDS).max(MIN_LAST_STEP);
    }
    let last = c.epoch_state.last_step;
    let is_last = (last != 0 && step >= last) || step >= c.config.total_steps;
    // an accusation gets its tie-breakers: those about the last trained round come at most two rounds late
    if is_last && !has_unjudged(c) {
        return change_state(c, run_state::COOLDOWN, now);
    }
    start_round(c, now, seed);
}

/// Counts the previous round for everybody a quorum saw, apart from elected witnesses that kept silent, and
/// drops witnesses that have contradicted a quorum too often.
fn judge_witnesses(c: &mut CoordinatorAccount, needed: u16) {
    let Some(previous) = attestable(c) else { return };
    let due = previous.healthy;
    let silent = silent_witnesses(c);
    let votes = Votes::count(c.epoch_state.current());
    let seen = votes.seen(needed);
    for (index, client) in c.epoch_state.clients_mut().iter_mut().enumerate() {
        if get_bit(&silent, index) {
            client.silent_rounds = client.silent_rounds.saturating_add(1);
        } else if get_bit(&due, index) && get_bit(&seen, index) {
            client.attested_rounds += 1;
        }
    }
    count_contradictions(c, &seen, &votes.missed(needed));
}

fn count_contradictions(c: &mut CoordinatorAccount, seen: &Bitmap, missed: &Bitmap) {
    let height = c.epoch_state.current().height;
    let limit = c.config.max_witness_contradictions;
    for number in 0..c.epoch_state.current().stored_witnesses().len() {
        let witness = &c.epoch_state.current().witnesses[number];
        if !contradicts(&witness.participants, seen, missed) {
            continue;
        }
        let index = witness.index as usize;
        let client = &mut c.epoch_state.clients_mut()[index];
        client.contradictions = client.contradictions.saturating_add(1);
        if client.contradictions > limit && client.state == client_state::HEALTHY {
            client.state = client_state::DROPPED;
            client.exited_height = height;
        }
    }
}

/// Every Healthy client leaves the epoch at the current height.
pub fn withdraw_all(c: &mut CoordinatorAccount) {
    let height = c.epoch_state.current().height;
    for client in c.epoch_state.clients_mut() {
        if client.state == client_state::HEALTHY {
            client.state = client_state::WITHDRAWN;
            client.exited_height = height;
        }
    }
}

fn start_round(c: &mut CoordinatorAccount, now: u64, seed: u64) {
    let epoch = &c.epoch_state;
    let (head, height, data_index) = if epoch.first_round != 0 {
        (0, 0, c.progress.epoch_start_data_index)
    } else {
        let current = epoch.current();
        let next = (epoch.rounds_head + 1) % NUM_STORED_ROUNDS as u32;
        (next, current.height + 1, current.data_index + current.batch_size as u64)
    };
    if epoch.first_round != 0 {
        c.next_active += 1;
    }
    let healthy = c.epoch_state.healthy();
    let apply_only = c.epoch_state.last_step != 0;
    let batch_size = if apply_only { 0 } else { batch_size(&c.config, c.model.max_seq_len, data_index) };
    let step = c.progress.step;
    c.epoch_state.rounds_head = head;
    let round = c.epoch_state.current_mut();
    zero(round);
    round.data_index = data_index;
    round.random_seed = seed;
    round.height = height;
    round.step = step;
    round.batch_size = batch_size;
    round.clients_len = count(&healthy);
    round.apply_only = apply_only as u8;
    round.healthy = healthy;
    let elected = elect(c.config.witness_nodes, c.epoch_state.current());
    c.epoch_state.current_mut().elected = elected;
    let seats = seat_judges(c);
    c.epoch_state.current_mut().tie_breaker_tasks = seats;
    change_state(c, run_state::ROUND_TRAIN, now);
}

fn tick_cooldown(c: &mut CoordinatorAccount, now: u64) -> bool {
    // tie-breakers get the time that they would have in a round
    let least = if has_judged(c) { c.config.max_round_train_time } else { 0 };
    if !is_timeout(c, now, u64::max(c.config.cooldown_time, least)) {
        return false;
    }
    expire_all(c);
    settle(c);
    note_models(c);
    c.progress.epoch = c.progress.epoch.saturating_add(1);
    // the results of the two newest rounds were not applied; their data is trained again
    let first_unapplied = c.epoch_state.earlier(1).unwrap_or(c.epoch_state.current());
    c.progress.epoch_start_data_index = first_unapplied.data_index;
    if c.epoch_state.current().height >= NUM_APPLY_ROUNDS {
        share_model(c);
    }
    if c.pending_pause != 0 {
        withdraw_all(c);
        c.pending_pause = 0;
        c.epoch_state.cold_start_epoch = 1;
        change_state(c, run_state::PAUSED, now);
    } else if is_over(c) {
        change_state(c, run_state::FINISHED, now);
    } else {
        c.epoch_state.cold_start_epoch = 0;
        change_state(c, run_state::WAITING_FOR_MEMBERS, now);
    }
    true
}

/// From now on joiners take the model from peers.
fn share_model(c: &mut CoordinatorAccount) {
    let kind = c.model.checkpoint_kind;
    if is_shared(c) {
        return;
    }
    c.model.checkpoint_origin = kind;
    c.model.checkpoint_kind = if kind == checkpoint::GCS { checkpoint::P2P_GCS } else { checkpoint::P2P };
}

fn zero<T>(value: &mut T) {
    unsafe { core::ptr::write_bytes(value as *mut T, 0, 1) };
}

/// Asks for a pause, or pauses at once when no round is running. True when anything changed.
pub fn pause(c: &mut CoordinatorAccount, now: u64) -> bool {
    if (run_state::ROUND_TRAIN..=run_state::COOLDOWN).contains(&c.run_state) {
        let changed = c.pending_pause == 0;
        c.pending_pause = 1;
        return changed;
    }
    withdraw_all(c);
    c.epoch_state.cold_start_epoch = 1;
    change_state(c, run_state::PAUSED, now);
    true
}

/// Lets a paused run go on; everybody joins again.
pub fn resume(c: &mut CoordinatorAccount, now: u64) {
    c.next_active += 1;
    rest(c, now);
}
