//! Which model an epoch hands over to the next: the digest that a quorum of its last witnesses reported, and
//! what to fall back on. Zeros mean that nothing is known.
use super::committee::{num_elected, quorum};
use super::transition::NUM_APPLY_ROUNDS;
use crate::state::{checkpoint, Bitmap, CoordinatorAccount, Round, MODEL_PREFIX, NUM_STORED_ROUNDS};

type Digest = [u8; 32];
const UNKNOWN: Digest = [0; 32];
type Prefix = [u8; MODEL_PREFIX];
const NONE: Prefix = [0; MODEL_PREFIX];

pub fn is_shared(c: &CoordinatorAccount) -> bool {
    matches!(c.model.checkpoint_kind, checkpoint::P2P | checkpoint::P2P_GCS)
}

/// What a quorum of the round's elected witnesses reports, zeros when none does.
fn round_digest(witness_nodes: u16, round: &Round) -> Digest {
    // a quorum is more than half of those elected, so it outlasts a pairing off of different votes
    let (mut best, mut lead) = (&UNKNOWN, 0u16);
    for witness in round.stored_witnesses() {
        if lead == 0 {
            (best, lead) = (&witness.state_digest, 1);
        } else if witness.state_digest == *best {
            lead += 1;
        } else {
            lead -= 1;
        }
    }
    let same = round.stored_witnesses().iter().filter(|witness| witness.state_digest == *best);
    if same.count() < quorum(num_elected(witness_nodes, round)) as usize {
        return UNKNOWN;
    }
    *best
}

/// At an epoch's end: which model its last round led to, and behind it what to fall back on: the newest that a
/// quorum attested before, and the one that the epoch began with, which clients have on disk. Before anything
/// was applied the model is still the one that the epoch began with, as far behind the run's step as before.
pub fn note_models(c: &mut CoordinatorAccount) {
    let (witness_nodes, epoch) = (c.config.witness_nodes, &c.epoch_state);
    let current = epoch.current();
    if current.height < NUM_APPLY_ROUNDS {
        let num_rounds = current.height + 1;
        for step in [&mut c.model_step, &mut c.older_step] {
            if *step != 0 {
                *step = step.saturating_add(num_rounds);
            }
        }
        return;
    }
    let mut start = prefix(&epoch.model_digest);
    let newest = round_digest(witness_nodes, current);
    let step = if newest == UNKNOWN { 0 } else { current.step };
    let older = (1..NUM_STORED_ROUNDS)
        .map_while(|behind| epoch.earlier(behind))
        .map(|round| (round_digest(witness_nodes, round), round.step))
        .find(|(digest, _)| *digest != UNKNOWN && *digest != newest);
    let (older, older_step) = older.unwrap_or((UNKNOWN, 0));
    let older = prefix(&older);
    if start == older || start == prefix(&newest) {
        start = NONE;
    }
    write(c, newest, [older, start], step, older_step);
}

/// Nobody had the model in a whole warm-up: the one behind it is wanted, at last the run's own checkpoint. What
/// the rounds between had trained is lost to the run.
pub fn step_back(c: &mut CoordinatorAccount) {
    let [mut older, mut oldest] = c.epoch_state.older_digests;
    let mut step = c.older_step;
    if older == NONE {
        (older, oldest, step) = (oldest, NONE, 0);
    }
    if older == NONE {
        c.model.checkpoint_kind = c.model.checkpoint_origin;
    }
    let mut wanted = UNKNOWN;
    wanted[..MODEL_PREFIX].copy_from_slice(&older);
    write(c, wanted, [oldest, NONE], step, 0);
}

/// The owner has named another model. True when anything changed.
pub fn forget_models(c: &mut CoordinatorAccount) -> bool {
    let epoch = &c.epoch_state;
    let is_clear = epoch.model_digest == UNKNOWN && epoch.older_digests == [NONE; 2];
    let was_known = !is_clear || c.model_step != 0 || c.older_step != 0;
    write(c, UNKNOWN, [NONE; 2], 0, 0);
    was_known
}

fn prefix(digest: &Digest) -> Prefix {
    let mut prefix = NONE;
    prefix.copy_from_slice(&digest[..MODEL_PREFIX]);
    prefix
}

/// No client in `healthy` has said in this warm-up that it has the model.
pub fn has_nobody_ready(c: &CoordinatorAccount, healthy: &Bitmap) -> bool {
    healthy.iter().zip(&c.epoch_state.warmup_ready).all(|(due, ready)| due & ready == 0)
}

fn write(c: &mut CoordinatorAccount, newest: Digest, older: [Prefix; 2], step: u32, older_step: u32) {
    (c.epoch_state.model_digest, c.epoch_state.older_digests) = (newest, older);
    (c.model_step, c.older_step) = (step, older_step);
}
