//! How many samples a round trains.
use crate::state::CoordinatorConfig;

/// Samples of a round that starts at `data_index`: a linear ramp over the tokens seen, rounded to nearest.
pub fn batch_size(config: &CoordinatorConfig, max_seq_len: u32, data_index: u64) -> u32 {
    let (start, end) = (config.global_batch_size_start as u128, config.global_batch_size_end as u128);
    let warmup = config.global_batch_size_warmup_tokens as u128;
    let tokens = data_index as u128 * max_seq_len as u128;
    if warmup == 0 || tokens >= warmup {
        return end as u32;
    }
    (start + ((end - start) * tokens + warmup / 2) / warmup) as u32
}

#[cfg(test)]
mod tests {
    use super::batch_size;
    use crate::state::zeroed_account;

    #[test]
    fn ramp() {
        let mut account = zeroed_account();
        let config = &mut account.config;
        config.global_batch_size_start = 8;
        config.global_batch_size_end = 16;
        assert_eq!(batch_size(config, 100, 0), 16);
        config.global_batch_size_warmup_tokens = 1000;
        let sizes = [0, 1, 2, 5, 9, 10, u64::MAX].map(|index| batch_size(config, 100, index));
        assert_eq!(sizes, [8, 9, 10, 12, 15, 16, 16]);
    }
}
