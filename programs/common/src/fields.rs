//! Numbers and keys at fixed places of an account's data. A place outside of the data aborts.
use crate::Key;

pub fn get_u64(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(data, at))
}

pub fn get_u128(data: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(get(data, at))
}

pub fn get_key(data: &[u8], at: usize) -> Key {
    get(data, at)
}

fn get<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0u8; N];
    bytes.copy_from_slice(&data[at..at + N]);
    bytes
}

pub fn put(data: &mut [u8], at: usize, bytes: &[u8]) {
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_got() {
        let mut data = [0u8; 64];
        put(&mut data, 3, &(u64::MAX - 1).to_le_bytes());
        put(&mut data, 11, &(u128::MAX - 2).to_le_bytes());
        put(&mut data, 27, &[7; 32]);
        assert_eq!(get_u64(&data, 3), u64::MAX - 1);
        assert_eq!(get_u128(&data, 11), u128::MAX - 2);
        assert_eq!(get_key(&data, 27), [7; 32]);
        assert_eq!((data[2], data[59]), (0, 0));
    }

    #[test]
    #[should_panic]
    fn a_place_outside_aborts() {
        get_u64(&[0; 15], 8);
    }
}
