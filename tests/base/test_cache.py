"""What is kept: made once while there is room, the latest used longest."""

from concurrent.futures import ThreadPoolExecutor

from planner.base.cache import LruCache


def asked(kept, *keys):
    """Which of some keys, one after the other, had to be made: texts as long as they say."""
    made = []
    for key in keys:
        assert kept.get(key, lambda key=key: made.append(key) or "x" * (key - 1)) == "x" * (key - 1)
    return made


def test_the_latest_used_stay_as_far_as_their_lengths_allow():
    kept = LruCache(10)
    assert asked(kept, 4, 3, 2, 4, 3, 2) == [4, 3, 2]
    assert asked(kept, 4, 5, 4) == [5]  # 3 and 2 had to go, 4 was used later
    assert asked(kept, 3, 2) == [3, 2]
    assert asked(kept, 5) == [5]


def test_what_alone_is_too_long_is_made_each_time():
    assert asked(LruCache(10), 11, 11) == [11, 11]


def test_many_threads_get_what_they_ask_for_and_the_bound_holds():
    kept, keys = LruCache(10), [1, 2, 3, 4] * 500
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda key: kept.get(key, lambda: "x" * (key - 1)), keys)) == [
            "x" * (key - 1) for key in keys
        ]
    assert asked(kept, 1, 2, 3, 4) == []
