//! One-time codes of `rooflet ui`. A code contains the time at which it was made and a random
//! number, both authenticated with the bearer token of the kubeconfig. So the command and the server
//! need no connection, and no token leaves the command.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use ring::hmac;

use rooflet_base::clock::since;

/// Time for which a code is valid.
pub(crate) const VALIDITY: Duration = Duration::from_secs(120);
/// Used codes that are remembered until they expire. Only holders of the token can make codes.
const MAX_USED: usize = 1024;

const TIME_BYTES: usize = 8;
const RANDOM_BYTES: usize = 16;
const SIGNED_BYTES: usize = TIME_BYTES + RANDOM_BYTES;
/// Distinguishes the codes from other uses of the token.
const PURPOSE: &[u8] = b"rooflet web sign-in code v1\n";

type Random = [u8; RANDOM_BYTES];

/// Makes a code for the holder of `token`.
pub(crate) fn make(token: &str, now: Timestamp) -> Result<String, rand::rand_core::OsError> {
    let mut random: Random = [0; RANDOM_BYTES];
    OsRng.try_fill_bytes(&mut random)?;
    let mut code = [&now.as_millisecond().to_be_bytes()[..], &random].concat();
    let tag = hmac::sign(&key(token), &signed(&code));
    code.extend_from_slice(tag.as_ref());
    Ok(URL_SAFE_NO_PAD.encode(code))
}

fn key(token: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes())
}

fn signed(content: &[u8]) -> Vec<u8> {
    [PURPOSE, content].concat()
}

/// Codes that a server accepts.
pub(crate) struct SignInCodes {
    /// Start of the server. Codes from before are rejected, because they may have been used.
    started: Timestamp,
    used: HashMap<Random, Timestamp>,
}

impl SignInCodes {
    pub(crate) fn new(started: Timestamp) -> Self {
        Self {
            started,
            used: HashMap::new(),
        }
    }

    /// Returns whether the code is valid, and marks it as used.
    pub(crate) fn redeem(&mut self, code: &str, token: &str, now: Timestamp) -> bool {
        let Some((made, random)) = parse(code, token) else {
            return false;
        };
        self.used.retain(|_, made| since(now, *made) < VALIDITY);
        let is_current = made > self.started && made <= now && since(now, made) < VALIDITY;
        if !is_current || self.used.len() >= MAX_USED {
            return false;
        }
        self.used.insert(random, made).is_none()
    }
}

/// Returns the content of a code that was made with this token.
fn parse(code: &str, token: &str) -> Option<(Timestamp, Random)> {
    let bytes = URL_SAFE_NO_PAD.decode(code).ok()?;
    let (content, tag) = bytes.split_at_checked(SIGNED_BYTES)?;
    hmac::verify(&key(token), &signed(content), tag).ok()?;
    let (time, random) = content.split_at(TIME_BYTES);
    let made = Timestamp::from_millisecond(i64::from_be_bytes(time.try_into().ok()?)).ok()?;
    Some((made, random.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use rooflet_base::clock::at;

    use super::*;

    const TOKEN: &str = "rooflet_secret";

    fn code(second: i64) -> String {
        make(TOKEN, at(second)).expect("random")
    }

    #[test]
    fn code_is_valid_once() {
        let mut codes = SignInCodes::new(at(100));
        let first = code(200);
        assert!(codes.redeem(&first, TOKEN, at(201)));
        assert!(!codes.redeem(&first, TOKEN, at(202)));
        assert!(codes.redeem(&code(200), TOKEN, at(202)), "another code");
    }

    #[test]
    fn code_expires_and_comes_neither_from_the_future_nor_from_a_previous_run() {
        let mut codes = SignInCodes::new(at(100));
        assert!(codes.redeem(&code(200), TOKEN, at(319)));
        for (made, now) in [(200, 320), (200, 199), (100, 101), (99, 101)] {
            assert!(!codes.redeem(&code(made), TOKEN, at(now)), "{made} {now}");
        }
    }

    #[test]
    fn changed_code_or_other_token_is_rejected() {
        let mut codes = SignInCodes::new(at(100));
        let valid = code(200);
        let bytes = URL_SAFE_NO_PAD.decode(&valid).expect("base64");
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            let changed = URL_SAFE_NO_PAD.encode(changed);
            assert!(!codes.redeem(&changed, TOKEN, at(201)), "{position}");
        }
        for wrong in ["", "a", "%", &valid[..40], &format!("{valid}AAAA")] {
            assert!(!codes.redeem(wrong, TOKEN, at(201)), "{wrong}");
        }
        assert!(!codes.redeem(&valid, "other", at(201)));
        assert!(codes.redeem(&valid, TOKEN, at(201)));
    }

    #[test]
    fn used_codes_are_bounded_and_forgotten_after_expiry() {
        let mut codes = SignInCodes::new(at(100));
        for _ in 0..MAX_USED {
            assert!(codes.redeem(&code(200), TOKEN, at(201)));
        }
        assert!(!codes.redeem(&code(200), TOKEN, at(201)));
        assert!(codes.redeem(&code(330), TOKEN, at(331)));
        assert_eq!(codes.used.len(), 1);
    }
}
