//! The running epoch: its clients and the ring of four rounds.

pub const MAX_CLIENTS: usize = 256;
pub const MAX_WITNESSES: usize = 32;
pub const NUM_STORED_ROUNDS: usize = 4;
/// Bytes kept of the digest of a model to fall back on: 128 bits, nobody makes another model with the same.
pub const MODEL_PREFIX: usize = 16;

/// One bit per epoch client index.
pub type Bitmap = [u64; MAX_CLIENTS / 64];

pub fn get_bit(bitmap: &Bitmap, index: usize) -> bool {
    bitmap[index / 64] >> (index % 64) & 1 == 1
}
pub fn set_bit(bitmap: &mut Bitmap, index: usize) {
    bitmap[index / 64] |= 1 << (index % 64);
}

pub mod client_state {
    pub const HEALTHY: u8 = 0;
    pub const DROPPED: u8 = 1;
    pub const WITHDRAWN: u8 = 2;
    pub const EJECTED: u8 = 3;
}

/// What an elected witness attests about the round before the one it is stored in.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Witness {
    pub index: u16,
    pub pad0: u16,
    pub pad1: u32,
    pub participants: Bitmap,
    pub broadcast_bloom: [u64; 16],
    pub broadcast_merkle: [u8; 32],
    pub state_digest: [u8; 32],
}
const _: () = assert!(core::mem::size_of::<Witness>() == 232);

#[repr(C)]
pub struct Round {
    pub data_index: u64,
    pub random_seed: u64,
    pub height: u32,
    pub step: u32,
    pub batch_size: u32,
    pub clients_len: u16,
    pub num_witnesses: u16,
    pub tie_breaker_tasks: u16,
    pub apply_only: u8,
    pub pad0: u8,
    pub pad1: u32,
    pub healthy: Bitmap,
    /// Those among `healthy` whose attestation is wanted.
    pub elected: Bitmap,
    pub witnesses: [Witness; MAX_WITNESSES],
}
const _: () = assert!(core::mem::size_of::<Round>() == 7528);

impl Round {
    pub fn stored_witnesses(&self) -> &[Witness] {
        &self.witnesses[..usize::min(self.num_witnesses as usize, MAX_WITNESSES)]
    }
    /// Epoch clients whose attestation is stored.
    pub fn witnessed(&self) -> Bitmap {
        let mut bitmap = [0; MAX_CLIENTS / 64];
        for witness in self.stored_witnesses() {
            set_bit(&mut bitmap, witness.index as usize % MAX_CLIENTS);
        }
        bitmap
    }
    /// Position of a client among those Healthy at the round's start.
    pub fn rank(&self, index: usize) -> u16 {
        let mut rank = 0;
        for word in 0..index / 64 {
            rank += self.healthy[word].count_ones();
        }
        let below = self.healthy[index / 64] & ((1u64 << (index % 64)) - 1);
        (rank + below.count_ones()) as u16
    }
    /// The client with `rank`, the inverse.
    pub fn client_at(&self, rank: u16) -> Option<usize> {
        let mut left = rank as u32;
        for (number, word) in self.healthy.iter().enumerate() {
            let mut bits = *word;
            let num = bits.count_ones();
            if left >= num {
                left -= num;
                continue;
            }
            for _ in 0..left {
                bits &= bits - 1;
            }
            return Some(64 * number + bits.trailing_zeros() as usize);
        }
        None
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct EpochClient {
    pub entry: u16,
    pub state: u8,
    /// Refusals this epoch, said or committed, that turned out answered.
    pub refusals: u8,
    pub exited_height: u32,
    pub attested_rounds: u32,
    /// How often this epoch it contradicted a quorum, and was silent when elected.
    pub contradictions: u16,
    pub silent_rounds: u16,
}
const _: () = assert!(core::mem::size_of::<EpochClient>() == 16);

#[repr(C)]
pub struct EpochState {
    pub rounds_head: u32,
    pub num_clients: u16,
    pub first_round: u8,
    pub cold_start_epoch: u8,
    pub start_step: u32,
    pub last_step: u32,
    pub start_timestamp: u64,
    pub warmup_ready: Bitmap,
    /// The model that the epoch starts from, as a quorum attested it at the end of the one before; zeros when
    /// no quorum did. Behind it what to fall back on, the newest first. All outlive the epoch.
    pub model_digest: [u8; 32],
    pub older_digests: [[u8; MODEL_PREFIX]; 2],
    pub clients: [EpochClient; MAX_CLIENTS],
    pub rounds: [Round; NUM_STORED_ROUNDS],
}
const _: () = assert!(core::mem::size_of::<EpochState>() == 34_328);

impl EpochState {
    fn slot(&self, behind: usize) -> usize {
        (self.rounds_head as usize + NUM_STORED_ROUNDS - behind) % NUM_STORED_ROUNDS
    }
    pub fn current(&self) -> &Round {
        &self.rounds[self.slot(0)]
    }
    pub fn current_mut(&mut self) -> &mut Round {
        let slot = self.slot(0);
        &mut self.rounds[slot]
    }
    /// The round `behind` rounds before the current one, of those that are stored.
    pub fn earlier(&self, behind: usize) -> Option<&Round> {
        (self.current().height as usize >= behind).then(|| &self.rounds[self.slot(behind)])
    }
    pub fn clients(&self) -> &[EpochClient] {
        &self.clients[..usize::min(self.num_clients as usize, MAX_CLIENTS)]
    }
    pub fn clients_mut(&mut self) -> &mut [EpochClient] {
        let num = usize::min(self.num_clients as usize, MAX_CLIENTS);
        &mut self.clients[..num]
    }
    pub fn healthy(&self) -> Bitmap {
        let mut bitmap = [0; MAX_CLIENTS / 64];
        for (index, client) in self.clients().iter().enumerate() {
            if client.state == client_state::HEALTHY {
                set_bit(&mut bitmap, index);
            }
        }
        bitmap
    }
    pub fn num_healthy(&self) -> u16 {
        count(&self.healthy())
    }
}

pub fn count(bitmap: &Bitmap) -> u16 {
    bitmap.iter().map(|word| word.count_ones()).sum::<u32>() as u16
}
