"""Pictures of a frame: all its cameras and a bird's-eye view, drawn without a display."""
from georope.visualization.boxes import Boxes
from georope.visualization.draw import draw_bev, draw_camera, draw_frame
from georope.visualization.files import save_film, save_image
from georope.visualization.hook import DetectionVisualizationHook
from georope.visualization.info import draw_info_frame

__all__ = ['Boxes', 'DetectionVisualizationHook', 'draw_bev', 'draw_camera', 'draw_frame', 'draw_info_frame',
           'save_film', 'save_image']
