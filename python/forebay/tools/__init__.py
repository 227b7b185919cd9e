"""The programs behind the commands of ``forebay``: no part of a training job imports them."""
