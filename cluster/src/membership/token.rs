//! Server tokens: a bootstrap token, by which a machine finds and trusts the cluster, and a key that the cluster does not
//! know, by which it opens what was sealed for it.
//!
//! The three parts are divided by dots. The token of an agent has two, so that neither is taken for the other.

use anyhow::{Result, bail};
use ring::rand::{SecureRandom, SystemRandom};

const ALPHABET: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
/// The lengths of the parts; the key has 165 bits.
const LENGTHS: [usize; 3] = [6, 16, 32];

#[derive(Clone)]
pub struct ServerToken {
    id: String,
    secret: String,
    key: String,
}

impl ServerToken {
    /// Returns a random token.
    pub fn generate() -> Result<ServerToken> {
        let [id, secret, key] = LENGTHS;
        Ok(ServerToken { id: random(id)?, secret: random(secret)?, key: random(key)? })
    }

    pub fn parse(text: &str) -> Result<ServerToken> {
        let parts: Vec<&str> = text.split('.').collect();
        let is_part =
            |part: &str, length: usize| part.len() == length && part.bytes().all(|byte| ALPHABET.contains(&byte));
        let is_good = |count: usize| {
            parts.len() == count && parts.iter().zip(LENGTHS).all(|(part, length)| is_part(part, length))
        };
        if is_good(2) {
            bail!("this is an agent's token; `corten token create --server` on a server makes one for servers");
        }
        match parts[..] {
            [id, secret, key] if is_good(3) => {
                Ok(ServerToken { id: id.to_owned(), secret: secret.to_owned(), key: key.to_owned() })
            }
            _ => bail!("this is no server token: 6, 16 and 32 lower-case letters and digits with dots between them"),
        }
    }

    /// Returns the id, which is no secret.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the bootstrap token, which the cluster knows.
    pub fn bootstrap(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// Returns the part that the cluster does not know.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the whole token, for the person who made it.
    pub fn reveal(&self) -> String {
        format!("{}.{}.{}", self.id, self.secret, self.key)
    }
}

/// Returns random lower-case letters and digits.
pub fn random(length: usize) -> Result<String> {
    let random = SystemRandom::new();
    let mut characters = String::with_capacity(length);
    while characters.len() < length {
        let mut byte = [0u8];
        random.fill(&mut byte).map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
        // Every character is as likely as another: what does not divide evenly is thrown away.
        if byte[0] < 252 {
            characters.push(char::from(ALPHABET[usize::from(byte[0] % 36)]));
        }
    }
    Ok(characters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_servers_and_agents_differ_in_form() {
        let token = ServerToken::generate().unwrap();
        let read = ServerToken::parse(&token.reveal()).unwrap();
        assert_eq!(read.bootstrap(), token.bootstrap());
        assert_eq!(read.key(), token.key());
        assert_ne!(ServerToken::generate().unwrap().reveal(), token.reveal());
        let refusal = |text: &str| ServerToken::parse(text).err().unwrap().to_string();
        assert!(refusal(&token.bootstrap()).contains("an agent's token"));
        for bad in ["", "a.b.c", "abcdef.0123456789abcdef.short", &token.reveal().to_uppercase()] {
            assert!(refusal(bad).contains("no server token"), "{bad}");
        }
    }
}
