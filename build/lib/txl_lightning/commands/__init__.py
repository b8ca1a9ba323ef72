"""Commands that need no Trainer: plain functions whose signatures are their options."""
