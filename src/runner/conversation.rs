//! The history of a conversation: messages, the replies as they were sampled, and what each turn left behind.

use super::sequence::Sequence;
use crate::chat::{Message, Role, SampledReply};
use crate::error::{Error, Result};

/// Finished turns, oldest first.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    system_prompt: Option<String>,
    turns: Vec<Turn>,
    /// What the history consists of now; raw tokens of single steps included.
    tokens: Sequence,
}

/// One finished turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// What the caller said; of pictures only the encoded rows are kept.
    pub messages: Vec<Message>,
    /// What was answered.
    pub reply: Reply,
    /// The whole history when the turn ended, the last sampled token included.
    pub tokens: Sequence,
}

/// A reply of the model.
#[derive(Debug)]
pub(super) struct Reply {
    /// As it was shown.
    pub text: String,
    /// As it was sampled, which tokenizing the text need not give back; `None` if the shown text ends within a token.
    pub tokens: Option<Vec<u32>>,
}

impl Conversation {
    pub fn new(system_prompt: Option<String>) -> Self {
        Self { system_prompt, ..Self::default() }
    }

    /// Forget every turn; the system prompt stays.
    pub fn clear(&mut self) {
        self.turns.clear();
        self.tokens.clear();
    }

    pub fn turn_count(&self) -> usize {
        self.turns.len()
    }

    pub fn tokens(&self) -> &Sequence {
        &self.tokens
    }

    /// Replace the tokens without a turn (single steps).
    pub fn set_tokens(&mut self, tokens: Sequence) {
        self.tokens = tokens;
    }

    pub fn push(&mut self, turn: Turn) {
        self.tokens.clone_from(&turn.tokens);
        self.turns.push(turn);
    }

    /// Forget all but the first `turns` turns.
    pub fn rewind(&mut self, turns: usize) -> Result<()> {
        if turns > self.turns.len() {
            let have = self.turns.len();
            return Err(Error::invalid(format!("cannot rewind to {turns} turns, the conversation has {have}")));
        }
        self.turns.truncate(turns);
        self.tokens = self.turns.last().map(|turn| turn.tokens.clone()).unwrap_or_default();
        Ok(())
    }

    /// The messages of the whole history and of `new`, and the replies among them with their sampled ids.
    pub fn script(&self, new: &[Message]) -> (Vec<Message>, Vec<SampledReply>) {
        let (mut messages, mut replies) = (Vec::new(), Vec::new());
        let first = self.turns.first().map_or(new, |turn| &turn.messages).first();
        if let Some(prompt) = &self.system_prompt
            && first.is_none_or(|message| message.role != Role::System)
        {
            messages.push(Message::system(prompt));
        }
        for turn in &self.turns {
            messages.extend(turn.messages.iter().cloned());
            let sampled = turn.reply.tokens.as_ref();
            replies.extend(sampled.map(|ids| SampledReply { message_index: messages.len(), ids: ids.clone() }));
            messages.push(Message::assistant(&turn.reply.text));
        }
        messages.extend(new.iter().cloned());
        (messages, replies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(question: &str, answer: &str, tokens: &[u32]) -> Turn {
        Turn {
            messages: vec![Message::user(question)],
            reply: Reply { text: answer.into(), tokens: Some(vec![1, 2]) },
            tokens: Sequence::from_ids(tokens.to_vec()),
        }
    }

    #[test]
    fn script_is_system_then_turns_then_new() {
        let mut conversation = Conversation::new(Some("be brief".into()));
        conversation.push(turn("q", "a", &[1, 2, 3]));
        let (messages, replies) = conversation.script(&[Message::user("next")]);
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
        assert_eq!(replies, [SampledReply { message_index: 2, ids: vec![1, 2] }]);
    }

    #[test]
    fn a_system_message_of_the_caller_replaces_the_option() {
        let conversation = Conversation::new(Some("be brief".into()));
        let own = [Message::system("be long"), Message::user("q")];
        assert_eq!(conversation.script(&own).0, own);
    }

    #[test]
    fn rewind_restores_the_tokens_of_that_turn() {
        let mut conversation = Conversation::new(None);
        conversation.push(turn("q", "a", &[1, 2, 3]));
        conversation.push(turn("r", "b", &[1, 2, 3, 4, 5]));
        assert!(conversation.rewind(3).is_err());
        conversation.rewind(1).expect("one turn");
        assert_eq!((conversation.turn_count(), conversation.tokens().ids()), (1, &[1, 2, 3][..]));
        conversation.rewind(0).expect("none");
        assert!(conversation.tokens().is_empty());
    }
}
