"""A text web shop over a retail catalogue: search, open, choose, buy (WebShop in kind)."""

from evenhand.environments.shop.tasks import BinaryShopSuite, ShopSuite

__all__ = ["BinaryShopSuite", "ShopSuite"]
