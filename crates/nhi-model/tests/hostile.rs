//! Guests that do anything at all.

mod rig;

#[test]
fn a_guest_gone_mad_harms_nobody_else() {
    for seed in 0..300u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut left = 2000;
        rig::hostile::run(&mut || {
            left -= 1;
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (left > 0).then_some(state.to_le_bytes()[3])
        });
    }
}
