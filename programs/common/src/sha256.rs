//! SHA-256 that runs at compile time, for discriminators. On chain the syscall is used instead.

const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

const fn compress(mut h: [u32; 8], block: &[u8; 64]) -> [u32; 8] {
    let mut w = [0u32; 64];
    let mut i = 0;
    while i < 16 {
        w[i] = u32::from_be_bytes([block[4 * i], block[4 * i + 1], block[4 * i + 2], block[4 * i + 3]]);
        i += 1;
    }
    while i < 64 {
        let s0 = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ (w[i - 15] >> 3);
        let s1 = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ (w[i - 2] >> 10);
        w[i] = w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1);
        i += 1;
    }
    let mut v = h;
    i = 0;
    while i < 64 {
        let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
        let choose = (v[4] & v[5]) ^ (!v[4] & v[6]);
        let t1 = v[7].wrapping_add(s1).wrapping_add(choose).wrapping_add(K[i]).wrapping_add(w[i]);
        let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
        let majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        let t2 = s0.wrapping_add(majority);
        v = [t1.wrapping_add(t2), v[0], v[1], v[2], v[3].wrapping_add(t1), v[4], v[5], v[6]];
        i += 1;
    }
    i = 0;
    while i < 8 {
        h[i] = h[i].wrapping_add(v[i]);
        i += 1;
    }
    h
}

/// Hash of a message of any length.
pub const fn sha256(message: &[u8]) -> [u8; 32] {
    let mut h =
        [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
    let total = (message.len() + 9).div_ceil(64) * 64;
    let bits = (message.len() as u64 * 8).to_be_bytes();
    let mut at = 0;
    while at < total {
        let mut block = [0u8; 64];
        let mut i = 0;
        while i < 64 {
            let position = at + i;
            block[i] = if position < message.len() {
                message[position]
            } else if position == message.len() {
                0x80
            } else if position >= total - 8 {
                bits[position - (total - 8)]
            } else {
                0
            };
            i += 1;
        }
        h = compress(h, &block);
        at += 64;
    }
    let mut out = [0u8; 32];
    let mut i = 0;
    while i < 8 {
        let word = h[i].to_be_bytes();
        let mut j = 0;
        while j < 4 {
            out[4 * i + j] = word[j];
            j += 1;
        }
        i += 1;
    }
    out
}

/// First 8 bytes of sha256("`namespace`:`name`"), Anchor's way to name instructions and accounts.
pub const fn discriminator(namespace: &str, name: &str) -> [u8; 8] {
    let (a, b) = (namespace.as_bytes(), name.as_bytes());
    let mut message = [0u8; 96];
    let len = a.len() + 1 + b.len();
    let mut i = 0;
    while i < len {
        message[i] = if i < a.len() {
            a[i]
        } else if i == a.len() {
            b':'
        } else {
            b[i - a.len() - 1]
        };
        i += 1;
    }
    let (used, _) = message.split_at(len);
    let hash = sha256(used);
    [hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]]
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_answers() {
        assert_eq!(super::sha256(b"abc")[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert_eq!(super::sha256(&[0x61; 119])[..4], [0x31, 0xeb, 0xa5, 0x1c]);
    }
}
