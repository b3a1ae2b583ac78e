// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a store is, as users say it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::StoreError;

/// How the address of a bucket begins.
const SCHEME: &str = "s3://";

/// Where a store is: a directory, or `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    /// A directory.
    Directory(PathBuf),
    /// The part of a bucket whose keys begin alike.
    Bucket {
        /// The bucket.
        bucket: String,
        /// What comes before each key, without a slash at its ends; may be empty.
        prefix: String,
    },
}

impl FromStr for StorePlace {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return Ok(Self::Directory(text.into()));
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_part =
            |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_inside);
        let is_prefix = prefix.is_empty() || prefix.len() <= 512 && prefix.split('/').all(is_part);
        match is_part(bucket) && bucket.len() <= 63 && is_prefix {
            true => Ok(Self::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() }),
            false => Err(StoreError::Bucket {
                address: text.to_owned(),
                what: "it has to be s3://BUCKET or s3://BUCKET/PREFIX, of letters, digits, and . _ - between slashes".to_owned(),
            }),
        }
    }
}

impl fmt::Display for StorePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Bucket { bucket, prefix } if prefix.is_empty() => write!(f, "{SCHEME}{bucket}"),
            Self::Bucket { bucket, prefix } => write!(f, "{SCHEME}{bucket}/{prefix}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_printed_as_they_are_read() {
        for text in ["/srv/checkpoints", "relative", "s3://bucket", "s3://my.bucket-1/jobs/train_7"] {
            assert_eq!(text.parse::<StorePlace>().unwrap().to_string(), text);
        }
        assert_eq!("s3://b/p/".parse::<StorePlace>().unwrap().to_string(), "s3://b/p");
    }

    #[test]
    fn addresses_that_are_no_buckets_are_refused() {
        for text in [
            "s3://",
            "s3:///x",
            "s3://a b/x",
            "s3://b//x",
            "s3://b/../c",
            "s3://b/./c",
            "s3://b/a?x",
            "s3://b/%2e",
        ] {
            assert!(matches!(text.parse::<StorePlace>(), Err(StoreError::Bucket { .. })), "{text}");
        }
        assert!(format!("s3://{}", "b".repeat(64)).parse::<StorePlace>().is_err());
    }
}
